"""Label skew among clients of one size: each has a Dirichlet distribution over the classes."""

from dataclasses import dataclass
from typing import final

import numpy as np

from fedstrata.errors import check
from fedstrata.partition.base import Dealt
from fedstrata.partition.dealing import by_class, deal


@final
@dataclass(frozen=True)
class DirichletEqual(Dealt):
    """Clients of equal size; client k draws its labels from q_k ~ Dir(alpha * prior) (Hsu et al. 2019).

    The prior is the share of each class. Examples are drawn without replacement: clients that ask for a class that
    has run out draw from q_k over the classes that are left, and from the prior where q_k has none of these.
    """

    alpha: float = 0.5

    def validate(self):
        super().validate()
        check(self.alpha > 0, f"DirichletEqual.alpha must be above 0; got {self.alpha}")

    def assign(self, y, draw):
        pools = by_class(y, "DirichletEqual")
        return deal(pools, self._counts(np.array([len(p) for p in pools]), draw), draw)

    def _counts(self, supply: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """How many examples of each class each client gets, [N, C]; a class or more runs out in every turn."""
        sizes = np.array([len(part) for part in np.array_split(np.arange(supply.sum()), self.clients)])
        prior = np.clip(self.alpha * supply / supply.sum(), 1e-300, 1e9)  # beyond, numpy's draws are not finite
        q = draw.dirichlet(prior, self.clients)  # [N, C]
        counts = np.zeros_like(q, dtype=int)
        while (need := sizes - counts.sum(1)).any():
            left = supply - counts.sum(0)
            p = q * (left > 0)
            p[p.sum(1) == 0] = left
            asked = draw.multinomial(need, p / p.sum(1, keepdims=True))  # [N, C]
            for c in np.flatnonzero(asked.sum(0) > left):
                asked[:, c] = draw.multivariate_hypergeometric(asked[:, c], left[c])
            counts += asked
        return counts
