"""What becomes of running statistics and counters: mixed plainly; only a part that says so does more to them."""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fedstrata.layout import Arrays

BufferPolicy = Literal["average", "global", "local"]
"""average: the mean of the clients' buffers; global: the server keeps its own; local: so does every client."""


@dataclass(frozen=True)
class Buffers:
    """The buffers of a round."""

    old: Arrays = field(default_factory=dict)  # the server's, which the cohort received
    clients: Arrays = field(default_factory=dict)  # [K, ...] what the cohort sent back; empty where they are not sent
    mixed: Arrays = field(default_factory=dict)  # the clients' mean, in float64 and not rounded

    def of(self, k: int) -> Arrays:
        """Those of one client."""
        return {n: b[k] for n, b in self.clients.items()} if self.clients else self.old

    def mean(self, weights: Tensor, examples: Tensor, rounded: bool = False) -> Arrays:
        """The clients' mean in float64: floating-point buffers by these weights, [K], whole numbers by n_k / n.

        Rounded, it is in the types that the buffers have: what `settled` makes of it, in fewer steps.
        """
        if not self.clients:
            return self.old
        if any(b.is_complex() for b in self.clients.values()):  # pairs of numbers
            pairs = replace(self, old=_pairs(self.old), clients=_pairs(self.clients)).mean(weights, examples, rounded)
            return {n: torch.complex(*m.unbind(-1)) if self.clients[n].is_complex() else m for n, m in pairs.items()}
        by_size, means = examples.double(), {}
        for (dtype, _), group in self._alike().items():
            counts = not dtype.is_floating_point
            share, total = (by_size, by_size.sum()) if counts else (weights.double(), 1.0)  # a half stays one
            means |= _means(group, self.old, share, total, dtype if rounded else torch.float64)
        return {n: means[n] for n in self.clients}

    def mix(self, weights: Tensor, examples: Tensor) -> "Buffers":
        """These, with their mean."""
        return replace(self, mixed=self.mean(weights, examples))

    def _alike(self) -> dict[tuple[torch.dtype, bool], Arrays]:
        """The clients' buffers by the types that the server's have, single numbers apart."""
        groups: dict[tuple[torch.dtype, bool], Arrays] = {}
        for n, b in self.clients.items():
            groups.setdefault((self.old.get(n, b).dtype, b.dim() == 1), {})[n] = b
        return groups

    def settled(self, values: Arrays) -> Arrays:
        """These values in the types that the buffers have; whole numbers are rounded half to even."""

        return {n: _typed(values[n], old.dtype) for n, old in self.old.items()}


def _pairs(buffers: Arrays) -> Arrays:
    """The same with real and imaginary parts in a last axis."""
    return {n: torch.view_as_real(b) if b.is_complex() else b for n, b in buffers.items()}


def _typed(value: Tensor, dtype: torch.dtype) -> Tensor:
    whole = value.is_floating_point() and not dtype.is_floating_point
    return (value.round() if whole else value).to(dtype)


def excused(buffers: Arrays, own: Arrays) -> Arrays:
    """What clients sent, with zeros where the server's own buffers are not finite: nobody answers for those."""
    return {n: b.masked_fill(~own[n].isfinite().to(b.device), 0) if n in own else b for n, b in buffers.items()}


def _means(buffers: Arrays, old: Arrays, weights: Tensor, total: Tensor | float, dtype: torch.dtype) -> Arrays:
    """sum_k weights_k b_k / total, worked out in float64, of all these at once: a model may have hundreds.

    What has no finite mean, as minus infinity in a mask, stays as it was: 0 times infinity would be NaN.
    They are single numbers all or none: BatchNorm's counters, which are quicker to stack than to reshape and join.
    """
    given = list(buffers.values())
    single, k = given[0].dim() == 1, len(weights)
    flat = torch.stack(given, 1) if single else torch.cat([b if b.dim() == 2 else b.flatten(1) for b in given], 1)
    mean = weights @ flat.double() / total
    if not bool((fine := mean.isfinite()).all()):
        mean = torch.where(fine, mean, torch.cat([old[n].flatten() for n in buffers]).double())
    mean = _typed(mean, dtype)
    pieces = mean.unbind() if single else mean.split([b.numel() // k for b in given])
    return {n: p if b.dim() <= 2 else p.view(b.shape[1:]) for (n, b), p in zip(buffers.items(), pieces, strict=True)}
