"""Natural clients: the people or places that examples come from."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from fedstrata.clients import Clients
from fedstrata.errors import DataError, check
from fedstrata.partition.base import Partition
from fedstrata.rng import rng


@final
@dataclass(frozen=True)
class ByOwner(Partition):
    """One client for each owner (user, writer, domain), in the order of their names (LEAF, Caldas et al. 2018).

    Owners with fewer than `min_size` examples are left out; with `max_clients`, so many owners are drawn at random.
    """

    min_size: int = 1
    max_clients: int | None = None

    def validate(self):
        check(self.min_size >= 1, f"ByOwner.min_size must be at least 1; got {self.min_size}")
        fine = self.max_clients is None or self.max_clients >= 1
        check(fine, f"ByOwner.max_clients must be at least 1, or nothing; got {self.max_clients}")

    def split(self, x: Any, y: Any, seed: int = 0, owner: Any = None) -> Clients:
        owner = self._checked(owner, len(y))
        _, rank, sizes = np.unique(owner, return_inverse=True, return_counts=True)
        kept = np.flatnonzero(sizes >= self.min_size)
        if not len(kept):
            most = f"the largest of {len(sizes)} has {sizes.max()}" if len(sizes) else "there are no examples"
            raise DataError(f"no owner has min_size = {self.min_size} examples; {most}")
        if self.max_clients is not None and self.max_clients < len(kept):
            kept = np.sort(rng(seed, "partition").choice(kept, self.max_clients, replace=False))
        rows = np.split(np.argsort(rank, kind="stable"), np.cumsum(sizes)[:-1])
        return Clients.split(x, y, [rows[i] for i in kept])

    @staticmethod
    def _checked(owner: Any, count: int) -> np.ndarray:
        if owner is None:
            need = "ByOwner needs the owner of each example, split(x, y, owner=...), and this data has none"
            raise DataError(f"{need}; choose another partition, e.g. Dirichlet")
        owner = np.asarray(owner)
        if owner.shape != (count,):
            raise DataError(f"ByOwner needs one owner for each of the {count} examples; got {owner.shape}")
        return owner
