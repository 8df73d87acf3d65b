"""What every partition promises: it ends, it can be made again, no example is lost or repeated."""

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
    """A rule that gives every example to one of the clients, each of which has at least `min_size`."""

    clients: int = 20
    min_size: int = 1

    def validate(self) -> None:
        name = type(self).__name__
        check(self.clients >= 1, f"{name}.clients must be at least 1; got {self.clients}")
        check(self.min_size >= 0, f"{name}.min_size must not be negative; got {self.min_size}")

    @abstractmethod
    def assign(self, y: np.ndarray, draw: np.random.Generator) -> list[np.ndarray]:
        """The rows of each client; every row once."""

    def split(self, x: Any, y: Any, seed: int = 0) -> Clients:
        """The clients that this rule makes of the examples."""
        labels = np.asarray(y)
        if len(labels) < self.clients * self.min_size:
            need = f"{self.clients} clients of at least {self.min_size} need {self.clients * self.min_size} examples"
            raise DataError(f"{need}; there are {len(labels)}. Ask for fewer clients or a smaller min_size")
        rows = topped_up(self.assign(labels, rng(seed, "partition")), self.min_size)
        return Clients.split(x, y, [np.sort(r) for r in rows])


def topped_up(rows: list[np.ndarray], min_size: int) -> list[np.ndarray]:
    """Give clients that have too few what they lack, one example at a time from the client that has most."""
    rows = list(rows)
    sizes = np.array([len(r) for r in rows])
    for k in np.flatnonzero(sizes < min_size):
        while sizes[k] < min_size:
            rich = sizes.argmax()
            rows[k], rows[rich] = np.append(rows[k], rows[rich][-1]), rows[rich][:-1]
            sizes[k] += 1
            sizes[rich] -= 1
    return rows
