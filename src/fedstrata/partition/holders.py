"""Label skew: each client holds a few classes, and each class is dealt out over those that hold it."""

from dataclasses import dataclass
from math import ceil
from typing import final

import numpy as np

from fedstrata.errors import DataError, check
from fedstrata.partition.base import Dealt
from fedstrata.partition.dealing import TRIES, at_least, by_class, deal, portions


@final
@dataclass(frozen=True)
class Holders(Dealt):
    """Dir(alpha) over the holders of each class, of which a client holds a few (Per-Layer Adaptive mu FedProx).

    Each client holds `classes` classes at random, each class has a holder, and a holder has an example of it at least,
    if there are enough. Drawn again until every client has `min_size`; should a hundred draws not do, clients get what
    they lack from the holders of their classes. With a large alpha, a class is shared out evenly.
    """

    clients: int = 250
    classes: int = 2
    alpha: float = 0.5

    def validate(self):
        super().validate()
        check(self.classes >= 1, f"Holders.classes must be at least 1; got {self.classes}")
        check(self.alpha > 0, f"Holders.alpha must be above 0; got {self.alpha}")

    def assign(self, y, draw):
        pools = by_class(y, "Holders")
        self._fits(len(pools))
        held = counts = np.zeros((self.clients, len(pools)), int)  # [N, C]
        for _ in range(TRIES):
            held = self._held(len(pools), draw)
            counts = np.zeros_like(counts)
            for c, pool in enumerate(pools):
                shares = portions(self.alpha, held[:, c].sum(), len(pool), draw)
                counts[held[:, c], c] = at_least(1, shares)
            if counts.sum(1).min() >= self.min_size:
                break
        return deal(pools, self._topped_up(counts, held), draw)

    def _fits(self, classes: int) -> None:
        if self.classes > classes:
            raise DataError(f"Holders gives {self.classes} classes to each client, but the labels have {classes}")
        if self.clients * self.classes < classes:
            have = f"{self.clients} clients with {self.classes} classes each cannot hold all {classes}"
            raise DataError(f"{have}; ask for {ceil(classes / self.classes)} clients or more, or for more classes each")

    def _held(self, classes: int, draw: np.random.Generator) -> np.ndarray:
        """Who holds which class, [N, C]; one that nobody holds takes the place of one that several do."""
        held = draw.permuted(np.tile(np.arange(classes) < self.classes, (self.clients, 1)), axis=1)
        for c in np.flatnonzero(~held.any(0)):
            k, other = draw.choice(np.argwhere(held & (held.sum(0) > 1)))
            held[k, [other, c]] = False, True
        return held

    def _topped_up(self, counts: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Who has too few gets examples of the classes held, from who has most of one and is above the minimum."""
        for k in np.flatnonzero(counts.sum(1) < self.min_size):
            while counts[k].sum() < self.min_size:
                spare = counts * held[k] * (counts.sum(1) > self.min_size)[:, None]  # [N, C]
                if not spare.any():
                    short = f"client {k} has {counts[k].sum()} examples and nobody can spare more of its classes"
                    ask = "ask for a smaller min_size, fewer clients, or more classes each"
                    raise DataError(f"Holders cannot give every client min_size = {self.min_size}: {short}; {ask}")
                rich, c = np.unravel_index(spare.argmax(), spare.shape)
                counts[[rich, k], c] += -1, 1
        return counts
