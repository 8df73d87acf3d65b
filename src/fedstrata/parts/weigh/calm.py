"""FedBS: calm clients count more."""

from dataclasses import dataclass
from typing import final

import torch

from fedstrata.core import Weigh
from fedstrata.errors import check
from fedstrata.parts.select import Variance


@final
@dataclass(frozen=True)
class Calm(Weigh):
    """FedBS, phase 2 (as defined in arXiv 2603.13909): weights softmax(-tau V_k) over the cohort.

    V has the scale of squared gradients, which saturates the softmax easily: normalise=True divides by its mean first.
    """

    tau: float = 1.0
    variance: Variance = "gradient"
    normalise: bool = False

    def validate(self):
        check(self.tau >= 0, f"Calm.tau must not be negative; got {self.tau}")

    @property
    def needs(self):
        return frozenset({f"{self.variance}_variance"})

    def weights(self, state, round):
        v = round.cohort.stats[f"{self.variance}_variance"].double()  # [K]
        round.note(variance=v)
        if self.normalise:
            v = v / v.mean().clamp_min(1e-300)
        return torch.softmax(torch.where(round.share > 0, -self.tau * v, -torch.inf), 0)[:, None], state
