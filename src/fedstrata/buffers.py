"""What becomes of running statistics and counters: mixed plainly; only a part that says so does more to them."""

from dataclasses import dataclass, field
from math import prod
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

    def mean(self, weights: Tensor, examples: Tensor) -> Arrays:
        """The clients' mean in float64: floating-point buffers by these weights, [K], whole numbers by n_k / n."""
        if not self.clients:
            return self.old
        counted = {n for n, b in self.clients.items() if not self.old.get(n, b).is_floating_point()}
        by_size = examples.double()
        means = _means({n: b for n, b in self.clients.items() if n not in counted}, weights.double())
        counts = _means({n: self.clients[n] for n in counted}, by_size, by_size.sum())  # a half stays one
        return {n: counts[n] if n in counted else means[n] for n in self.clients}

    def settled(self, values: Arrays) -> Arrays:
        """These values in the types that the buffers have; whole numbers are rounded half to even."""

        def typed(value: Tensor, old: Tensor) -> Tensor:
            whole = value.is_floating_point() and not old.is_floating_point()
            return (value.round() if whole else value).to(old.dtype)

        return {n: typed(values[n], old) for n, old in self.old.items()}


def _means(buffers: Arrays, weights: Tensor, total: Tensor | float = 1.0) -> Arrays:
    """sum_k weights_k b_k / total, in float64, of all these at once: a model may have hundreds."""
    if not buffers:
        return {}
    flat = torch.cat([b if b.dim() == 2 else b.reshape(len(weights), -1) for b in buffers.values()], 1)
    mean = weights @ flat.double() / total
    shapes = [b.shape[1:] for b in buffers.values()]
    pieces = mean.split([prod(s) for s in shapes])
    return {n: p if len(s) == 1 else p.view(s) for n, s, p in zip(buffers, shapes, pieces, strict=True)}
