"""What every partition promises: it ends, it can be made again, and no example has two clients."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedstrata.clients import Clients
from fedstrata.errors import DataError, check
from fedstrata.rng import rng
from fedstrata.values import Value


@dataclass(frozen=True)
class Partition(Value):
    """A rule that says who owns which examples, and gives the same answer for the same examples and seed.

    Every example has one client. A rule that uses only some of them says so, and `describe` counts those left out.
    """

    @abstractmethod
    def split(self, x: Any, y: Any, seed: int = 0, owner: Any = None) -> Clients:
        """The clients that this rule makes of the examples; `owner` has the natural user or domain of each."""


@dataclass(frozen=True)
class Dealt(Partition):
    """A rule that deals examples out to a number of clients, each of which gets at least `min_size`."""

    clients: int = 20
    min_size: int = 1

    def validate(self) -> None:
        name = type(self).__name__
        check(self.clients >= 1, f"{name}.clients must be at least 1; got {self.clients}")
        check(self.min_size >= 0, f"{name}.min_size must not be negative; got {self.min_size}")

    @abstractmethod
    def assign(self, y: np.ndarray, draw: np.random.Generator) -> list[np.ndarray]:
        """The rows of each client, none of them twice and at least `min_size` each."""

    def split(self, x: Any, y: Any, seed: int = 0, owner: Any = None) -> Clients:
        labels = np.asarray(y)
        if not len(labels):
            raise DataError(f"there are no examples: none of the {self.clients} clients has an example")
        if len(labels) < self.clients * self.min_size:
            need = f"{self.clients} clients of at least {self.min_size} need {self.clients * self.min_size} examples"
            raise DataError(f"{need}; there are {len(labels)}. Ask for fewer clients or a smaller min_size")
        return Clients.split(x, y, [np.sort(r) for r in self.assign(labels, rng(seed, "partition"))])
