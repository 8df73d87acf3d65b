"""FOLB: a client counts by how its gradient agrees with everybody's."""

from dataclasses import dataclass
from typing import final

import torch

from fedstrata.core import Weigh


@final
@dataclass(frozen=True)
class FOLB(Weigh):
    """FOLB (Nguyen et al. 2021): w' = w + sum_k I_k / sum_j |I_j| (w_k - w), I_k = <mean gradient, gradient_k> at w.

    A client whose gradient opposes the others' counts negatively. All I = 0: equally.
    """

    @property
    def needs(self):
        return frozenset({"gradient"})

    def weights(self, state, round):
        gradient = round.cohort.stats["gradient"]  # [K, P]
        agreement = round.layout.at("model").dot(gradient, gradient.mean(0))[:, 0]
        round.note(agreement=agreement)
        total = agreement.abs().sum()
        equal = torch.full_like(agreement, 1 / len(agreement))
        return torch.where(total > 0, agreement / total.clamp_min(1e-300), equal)[:, None], state

    def buffer_weights(self, weights, round):
        return round.share  # its weights may be negative
