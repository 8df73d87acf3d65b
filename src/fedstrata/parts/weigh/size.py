"""By number of examples, or equally."""

from dataclasses import dataclass
from typing import final

from fedstrata.core import Weigh


@final
@dataclass(frozen=True)
class BySize(Weigh):
    """FedAvg (McMahan et al. 2017, Alg. 1): p_k = n_k / n over the cohort."""

    @property
    def looks(self):
        return frozenset({"average"})

    def mass(self, stats):
        return stats["examples"]

    def weights(self, state, round):
        return round.share[:, None], state


@final
@dataclass(frozen=True)
class Equal(Weigh):
    """1 / K for every client of the cohort that has data."""

    @property
    def looks(self):
        return frozenset({"average"})

    def mass(self, stats):
        return stats.get("clients", stats["examples"] > 0).double()

    def weights(self, state, round):
        has = self.mass(round.cohort.stats)
        return (has / has.sum())[:, None], state
