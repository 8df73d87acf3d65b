"""Other heads for a model: what FedETF puts in place of the classifier, what MOON puts before it."""

from collections.abc import Callable
from copy import deepcopy
from math import sqrt

import torch
from torch import Tensor, nn

from fedstrata.errors import ModelError
from fedstrata.layout import Layout
from fedstrata.rng import seeded, torch_seed
from fedstrata.task import classifier_of


def with_head(model: nn.Module, seed: int, make: Callable[[nn.Linear], nn.Module], who: str) -> nn.Module:
    """A copy of the model with another head in place of its linear classifier, drawn from the seed."""
    name = classifier_of(model)
    old = model.get_submodule(name) if name is not None else None
    if name is None or not isinstance(old, nn.Linear):
        found = f"its classifier is a {type(old).__name__}" if old is not None else "it has no linear layer"
        raise ModelError(
            f"{who} replaces a model's linear classifier, and {type(model).__name__} has none: {found}; "
            "give a model that ends in nn.Linear, or call that layer `classifier`"
        )
    changed = _copy(model)
    with seeded(torch_seed(seed, "head")):
        head = make(old).to(old.weight.device, old.weight.dtype)
    parent, _, last = name.rpartition(".")
    if not name:  # the model is its classifier
        return head
    setattr(changed.get_submodule(parent), last, head)
    return changed


def _copy(model: nn.Module) -> nn.Module:
    """A copy in which tensors that share storage still do."""
    copied = deepcopy(model)
    named = dict(copied.named_parameters(remove_duplicate=False))
    for alias, first in Layout.of(model).aliases:
        named[alias].data = named[first].data
    return copied


class ETFHead(nn.Module):
    """scale times the cosines between the projected features and the corners of a simplex that nobody trains."""

    def __init__(self, old: nn.Linear, scale: float, width: int | None = None):
        super().__init__()
        classes = old.out_features
        width = max(width or old.in_features, classes)
        self.projection = nn.Linear(old.in_features, width)
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.corners = nn.Parameter(simplex_etf(width, classes), requires_grad=False)  # [width, C]

    def forward(self, h: Tensor) -> Tensor:
        """Logits, [B, C]."""
        return self.scale * nn.functional.normalize(self.projection(h), dim=-1) @ self.corners


class Projected(nn.Module):
    """A projection head of two layers, then a linear classifier."""

    def __init__(self, old: nn.Linear, width: int):
        super().__init__()
        self.project = nn.Sequential(
            nn.Linear(old.in_features, old.in_features), nn.ReLU(), nn.Linear(old.in_features, width)
        )
        self.classify = nn.Linear(width, old.out_features)

    def forward(self, h: Tensor) -> Tensor:
        """Logits, [B, C]."""
        return self.classify(self.project(h))


def simplex_etf(width: int, classes: int) -> Tensor:
    """V = sqrt(C / (C - 1)) U (I - 11^T / C), [width, C], with orthonormal columns U: equal angles between all."""
    if classes < 2:
        raise ModelError(f"ETF needs a classifier of two classes or more; this one has {classes}")
    u, _ = torch.linalg.qr(torch.randn(width, classes, dtype=torch.float64))
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    return sqrt(classes / (classes - 1)) * u @ centred
