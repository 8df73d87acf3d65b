"""Dropout whose masks depend on (seed, round, client, step) alone, not on who else is stacked or where it runs.

torch's own generator gives stacked clients other numbers than single ones. Here the mask of each element is a hash of
the client's noise, the layer, the call and the element: plain integer arithmetic that vmap can stack.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # the constants of splitmix64, as signed numbers
MIX1, MIX2 = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)

_NOISE: ContextVar[tuple[Tensor, list[int]] | None] = ContextVar("noise", default=None)


@contextmanager
def client_noise(noise: Tensor | None) -> Iterator[None]:
    """Within this block, dropout draws from this number, int64, of one client's step; [K] of a folded batch's."""
    token = _NOISE.set(None if noise is None else (noise, [0]))
    try:
        yield
    finally:
        _NOISE.reset(token)


def heed_noise(model: nn.Module) -> bool:
    """Make the model's dropout layers draw from `client_noise`; whether it has any."""
    as_torch_does = [kind.forward for kind in LAYERS]  # a subclass may do something else
    found = [m for m in model.modules() if isinstance(m, LAYERS) and type(m).forward in as_torch_does and m.p > 0]
    for module in found:
        module.forward = partial(_forward, module)  # pyright: ignore[reportAttributeAccessIssue]
    return bool(found)


def _forward(self: nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d, x: Tensor) -> Tensor:
    given = _NOISE.get()
    if not self.training or given is None:
        return type(self).forward(self, x)  # pyright: ignore[reportArgumentType]
    noise, calls = given
    calls[0] += 1  # every call of every layer has numbers of its own
    tail = x.shape[1:] if isinstance(self, nn.Dropout) else (x.shape[1], *[1] * (x.dim() - 2))  # or whole channels
    noise = noise.reshape(1, -1, *[1] * len(tail))  # of one client, or of each of a folded batch's
    batch = x.shape[0] // noise.shape[1]
    index = torch.arange(1, batch * prod(tail) + 1, device=x.device).view(batch, 1, *tail) + (calls[0] << 40)
    keep = (uniform(noise + index * GOLDEN) >= self.p).flatten(0, 1)
    return x * keep.to(x.dtype) / (1 - self.p) if self.p < 1 else x * 0.0


def uniform(x: Tensor) -> Tensor:
    """splitmix64's finaliser: whole numbers to float64 in [0, 1)."""
    x = (x ^ _shift(x, 30)) * MIX1
    x = (x ^ _shift(x, 27)) * MIX2
    return _shift(x ^ _shift(x, 31), 11).double() / (1 << 53)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
