"""Label skew: examples sorted by label are cut into shards, of which each client gets a few."""

from dataclasses import dataclass
from typing import final

import numpy as np

from fedstrata.errors import DataError, check
from fedstrata.partition.base import Dealt


@final
@dataclass(frozen=True)
class Shards(Dealt):
    """Sort by label, cut into equal shards, deal `shards` to each client (McMahan et al. 2017).

    A shard may straddle two classes. Targets that are not classes are sorted all the same.
    """

    clients: int = 100
    shards: int = 2

    def validate(self):
        super().validate()
        check(self.shards >= 1, f"Shards.shards must be at least 1; got {self.shards}")

    def assign(self, y, draw):
        if y.ndim != 1:
            raise DataError(f"Shards sorts by label and needs one for each example; got {y.dtype} {y.shape}")
        count = self.clients * self.shards
        if self.shards * (len(y) // count) < self.min_size:
            cut = f"{len(y)} examples in {count} shards are {self.shards * (len(y) // count)} a client in places"
            ask = "ask for fewer clients, fewer shards or a smaller min_size"
            raise DataError(f"Shards cannot give every client min_size = {self.min_size}: {cut}; {ask}")
        order = draw.permutation(len(y))
        shards = np.array_split(order[np.argsort(y[order], kind="stable")], count)
        hands = draw.permutation(count).reshape(self.clients, self.shards)
        return [np.concatenate([shards[i] for i in hand]) for hand in hands]
