"""A made-up federation whose optimum is known: clients that disagree about a quadratic."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.clients import Clients
from fedstrata.rng import rng


@dataclass(frozen=True, eq=False)
class Quadratics:
    """Clients that minimise F_k(w) = 1/2 (w - b_k)' A_k (w - b_k), and where the mean of all F_k is smallest."""

    clients: Clients
    optimum: Tensor  # [d]

    def model(self) -> nn.Module:
        """The linear model whose parameters are w, at 0. Train it with loss "squared_error" and batch=None."""
        linear = nn.Linear(len(self.optimum), 1, bias=False, dtype=self.optimum.dtype)
        nn.init.zeros_(linear.weight)
        return linear


def quadratics(clients: int = 5, size: int = 6, spread: float = 2.0, seed: int = 0) -> Quadratics:
    """Heterogeneous quadratics in float64, written as least squares so that nothing about them is special.

    Client k has `size` examples x_i = sqrt(size A_k,ii) e_i with targets x_i . b_k, so that its mean of
    1/2 (x . w - y)^2 is F_k; A_k is diagonal in [0.2, 3.2], b_k normal with this spread.
    """
    draw = rng(seed, "quadratics")
    a = 0.2 + 3 * draw.random((clients, size))
    b = spread * draw.standard_normal((clients, size))
    x = np.sqrt(size * a)[:, :, None] * np.eye(size)
    y = np.einsum("kij,kj->ki", x, b)[..., None]
    optimum = torch.from_numpy((a * b).sum(0) / a.sum(0))
    return Quadratics(Clients.of(list(zip(x, y, strict=True))), optimum)
