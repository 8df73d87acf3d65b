"""Clients that have everything beside clients that have a class or two."""

from dataclasses import dataclass
from typing import final

import numpy as np

from fedstrata.errors import DataError, check
from fedstrata.partition.base import Dealt
from fedstrata.partition.dealing import by_class


@final
@dataclass(frozen=True)
class IIDMix(Dealt):
    """The first `iid` clients draw `size` examples from all, the others from `classes` classes (FedAdp, FedLayerWise).

    Uses clients * size examples and leaves the rest out. A client with several classes has equally many of each; they
    are drawn at random among those that still have enough.
    """

    clients: int = 10
    iid: int = 5
    classes: int = 1
    size: int = 600

    def validate(self):
        super().validate()
        check(0 <= self.iid <= self.clients, f"IIDMix.iid must be from 0 to clients = {self.clients}; got {self.iid}")
        fine = 1 <= self.classes <= self.size
        check(fine, f"IIDMix.classes must be from 1 to size = {self.size}; got {self.classes}")
        check(self.size >= self.min_size, f"IIDMix.size must be at least min_size = {self.min_size}; got {self.size}")

    def assign(self, y, draw):
        if len(y) < self.clients * self.size:
            need = f"{self.clients} clients of {self.size} need {self.clients * self.size} examples"
            raise DataError(f"{need}; there are {len(y)}. Ask for fewer clients or a smaller size")
        order = draw.permutation(len(y))
        even, rest = np.split(order, [self.iid * self.size])
        left = [rest[pool] for pool in by_class(y[rest], "IIDMix")]
        skewed = [self._skewed(left, draw) for _ in range(self.clients - self.iid)]
        return [*even.reshape(self.iid, self.size), *skewed]

    def _skewed(self, left: list[np.ndarray], draw: np.random.Generator) -> np.ndarray:
        """Take a client's examples out of what is left of each class."""
        counts = [len(part) for part in np.array_split(np.arange(self.size), self.classes)]  # the largest first
        enough = [c for c, rows in enumerate(left) if len(rows) >= counts[0]]
        if len(enough) < self.classes:
            short = f"classes with {counts[0]} examples left are {len(enough)}, and a client needs {self.classes}"
            raise DataError(f"IIDMix runs out of examples: {short}. Ask for a smaller size or fewer clients")
        hand: list[np.ndarray] = []
        for c, count in zip(draw.choice(enough, self.classes, replace=False), counts, strict=True):
            mine, left[c] = np.split(left[c], [count])
            hand.append(mine)
        return np.concatenate(hand)
