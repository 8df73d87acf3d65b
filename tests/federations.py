"""Small federations that several tests share."""

from typing import Any

import numpy as np
import torch
from torch import nn

import fedstrata as fs
from fedstrata.clients import Clients

PLAIN = [n for n, m in fs.recipes.METHODS.items() if "proxy" not in m().needs]
"""The methods that need no data on the server."""

SIZES = (17, 3, 30, 1, 8, 21, 12)


def unequal_clients(sizes: tuple[int, ...] = SIZES, features: int = 6, classes: int = 3, seed: int = 0) -> Clients:
    """Clients of unequal size whose classes and features differ."""
    draw = np.random.default_rng(seed)
    shift = draw.standard_normal((len(sizes), 1, features))
    x = [draw.standard_normal((n, features)) + s for n, s in zip(sizes, shift, strict=True)]
    return Clients.of([(v, draw.integers(0, classes, len(v))) for v in x])


def mlp(features: int = 6, classes: int = 3, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, 5), nn.ReLU(), nn.Linear(5, classes)).to(dtype)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def final_model(recipe: fs.Recipe, **settings: Any) -> torch.Tensor:
    """The flat global model after a few rounds on unequal clients, in float64."""
    given = {"rounds": 3, "training": fs.SGD(lr=0.1, batch=5, epochs=2)} | settings
    model, clients = given.pop("model", mlp()), given.pop("clients", unequal_clients())
    return flat(fs.simulate(recipe, model, clients, **given).model)
