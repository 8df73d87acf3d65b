"""By number of examples, or equally."""

from dataclasses import dataclass
from typing import final

import torch

from fedstrata.core import Weigh


@final
@dataclass(frozen=True)
class BySize(Weigh):
    """FedAvg (McMahan et al. 2017, Alg. 1): p_k = n_k / n over the cohort."""

    def weights(self, state, round):
        return round.share[:, None], state


@final
@dataclass(frozen=True)
class Equal(Weigh):
    """1 / K for every client of the cohort that has data."""

    def weights(self, state, round):
        has = (round.share > 0).double()
        return (has / torch.sum(has))[:, None], state
