"""Label skew: each class is dealt out over the clients in Dirichlet proportions."""

from dataclasses import dataclass
from typing import final

import numpy as np

from fedstrata.errors import check
from fedstrata.partition.base import Dealt
from fedstrata.partition.dealing import TRIES, by_class, portions, topped_up


@final
@dataclass(frozen=True)
class Dirichlet(Dealt):
    """For each class, p ~ Dir(alpha) over the clients (Yurochkin et al. 2019; FedLWS, FedPBS).

    Small alpha: strong skew. Drawn again until every client has `min_size` examples; should a hundred draws not do,
    the largest clients give the smallest what they lack.
    """

    alpha: float = 0.5

    def validate(self):
        super().validate()
        check(self.alpha > 0, f"Dirichlet.alpha must be above 0; got {self.alpha}")

    def assign(self, y, draw):
        pools = by_class(y, "Dirichlet")
        rows: list[np.ndarray] = []
        for _ in range(TRIES):
            rows = self._hands(pools, draw)
            if min(map(len, rows)) >= self.min_size:
                break
        return topped_up(rows, self.min_size)

    def _hands(self, pools: list[np.ndarray], draw: np.random.Generator) -> list[np.ndarray]:
        """The draws of a try, in an order that everybody's old splits depend on."""
        hands: list[list[np.ndarray]] = [[np.empty(0, int)] for _ in range(self.clients)]
        for pool in pools:
            mine = draw.permutation(pool)
            ends = np.cumsum(portions(self.alpha, self.clients, len(mine), draw))
            for hand, start, end in zip(hands, [0, *ends[:-1]], ends, strict=True):
                hand.append(mine[start:end])
        return [draw.permutation(np.concatenate(hand)) for hand in hands]
