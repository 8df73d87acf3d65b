"""FOLB: a client counts by how its gradient agrees with everybody's."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedstrata.core import Round, Weigh
from fedstrata.errors import check
from fedstrata.rng import rng


@final
@dataclass(frozen=True)
class FOLB(Weigh):
    """FOLB (Nguyen et al. 2021): w' = w + sum_k I_k / sum_j |I_j| (w_k - w), I_k = <mean gradient, gradient_k> at w.

    A client whose gradient opposes the others' counts negatively. All I = 0: equally. two_sample deals the cohort at
    random into two halves: the first one's updates count, the second one's I_j are below the line. psi above 0 is the
    system-aware version, I_k - psi gamma_k |mean gradient|^2, with gamma_k = |gradient at w_k| / |gradient at w|: how
    far from done a client is.
    """

    two_sample: bool = False
    psi: float = 0.0

    def validate(self):
        check(self.psi >= 0, f"FOLB.psi must not be negative; got {self.psi}")

    @property
    def needs(self):
        return frozenset({"gradient", "trained_gradient"} if self.psi else {"gradient"})

    def weights(self, state, round):
        first, second = self._samples(round)
        above, below = (self._agreement(some, round) for some in (first, second))
        round.note(agreement=above)
        total = below[second].abs().sum()
        equal = first / first.sum()
        return torch.where(total > 0, first * above / total.clamp_min(1e-300), equal)[:, None], state

    def _agreement(self, some: Tensor, round: Round) -> Tensor:
        """I_k of every client with the mean gradient of some of them, [K]."""
        layout, gradient = round.layout.at("model"), round.cohort.stats["gradient"]  # [K, P]
        mean = gradient[some].mean(0)
        agreement = layout.dot(gradient, mean)[:, 0]
        if not self.psi:
            return agreement
        gamma = layout.norm(round.cohort.stats["trained_gradient"]) / layout.norm(gradient).clamp_min(1e-300)
        return agreement - self.psi * gamma[:, 0] * layout.norm(mean).square()

    def _samples(self, round: Round) -> tuple[Tensor, Tensor]:
        """Who is in the first sample and who in the second, [K] each: everybody in both, or halves."""
        k = len(round.cohort)
        every = torch.ones(k, dtype=torch.bool, device=round.delta.device)
        if not self.two_sample or k < 2:
            return every, every
        number = round.cohort.number
        drawn = [rng(round.seed, "halves", number, i).random() for i in round.cohort.ids.tolist()]
        order = torch.tensor(drawn, device=every.device).argsort()  # each client draws for itself
        second = torch.zeros_like(every).index_fill(0, order[: k // 2], True)
        return ~second, second

    def buffer_weights(self, weights, round):
        return round.share  # its weights may be negative
