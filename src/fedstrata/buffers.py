"""What becomes of running statistics and counters: mixed plainly; only a part that says so does more to them."""

from dataclasses import dataclass, field
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

        def mean(b: Tensor) -> Tensor:
            if b.is_floating_point():
                return torch.tensordot(weights.double(), b.double(), 1)
            return torch.tensordot(examples.double(), b.double(), 1) / examples.double().sum()  # a half stays one

        return {n: mean(b) for n, b in self.clients.items()} if self.clients else self.old

    def settled(self, values: Arrays) -> Arrays:
        """These values in the types that the buffers have; whole numbers are rounded half to even."""

        def typed(value: Tensor, old: Tensor) -> Tensor:
            whole = value.is_floating_point() and not old.is_floating_point()
            return (value.round() if whole else value).to(old.dtype)

        return {n: typed(values[n], old) for n, old in self.old.items()}
