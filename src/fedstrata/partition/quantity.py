"""Size skew: some clients have much, some little, all of the same kind."""

from dataclasses import dataclass
from typing import final

import numpy as np

from fedstrata.errors import check
from fedstrata.partition.base import Dealt
from fedstrata.partition.dealing import TRIES, at_least, portions


@final
@dataclass(frozen=True)
class Quantity(Dealt):
    """Sizes in proportions p ~ Dir(alpha), examples at random (Li et al. 2022).

    Drawn again until every client has `min_size` examples; should a hundred draws not do, the largest clients give
    the smallest what they lack.
    """

    alpha: float = 0.5

    def validate(self):
        super().validate()
        check(self.alpha > 0, f"Quantity.alpha must be above 0; got {self.alpha}")

    def assign(self, y, draw):
        sizes = np.zeros(self.clients, int)
        for _ in range(TRIES):
            sizes = portions(self.alpha, self.clients, len(y), draw)
            if sizes.min() >= self.min_size:
                break
        return np.split(draw.permutation(len(y)), np.cumsum(at_least(self.min_size, sizes))[:-1])
