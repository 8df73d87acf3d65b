"""Label skew: each class is dealt out over the clients in Dirichlet proportions."""

from dataclasses import dataclass
from typing import final

import numpy as np

from fedstrata.errors import DataError, check
from fedstrata.partition.base import Partition

TRIES = 100
"""Draws before clients below the minimum size are topped up from the largest ones."""


@final
@dataclass(frozen=True)
class Dirichlet(Partition):
    """For each class, p ~ Dir(alpha) over the clients (Hsu et al. 2019; FedLWS, FedPBS). Small alpha: strong skew.

    Drawn again until every client has `min_size` examples; should a hundred draws not do, the largest clients give
    the smallest what they lack.
    """

    alpha: float = 0.5

    def validate(self):
        super().validate()
        check(self.alpha > 0, f"Dirichlet.alpha must be above 0; got {self.alpha}")

    def assign(self, y, draw):
        if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1:
            raise DataError(f"Dirichlet splits by class and needs whole-number labels; got {y.dtype} {y.shape}")
        rows: list[np.ndarray] = []
        for _ in range(TRIES):
            rows = self._deal(y, draw)
            if min(map(len, rows)) >= self.min_size:
                break
        return rows

    def _deal(self, y: np.ndarray, draw: np.random.Generator) -> list[np.ndarray]:
        hands: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        for c in np.unique(y):
            mine = draw.permutation(np.flatnonzero(y == c))
            alpha = min(self.alpha, 1e9)  # an even split; far beyond, numpy's draws overflow
            ends = np.cumsum(draw.dirichlet(np.full(self.clients, alpha)))[:-1]
            for hand, part in zip(hands, np.split(mine, np.rint(ends * len(mine)).astype(int)), strict=True):
                hand.append(part)
        return [draw.permutation(np.concatenate([np.empty(0, int), *hand])) for hand in hands]
