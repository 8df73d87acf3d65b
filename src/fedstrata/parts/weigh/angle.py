"""FedAdp and FedLayerWise: a client counts more where its update points the common way."""

from dataclasses import dataclass
from typing import Literal, final

import torch

from fedstrata.core import Weigh
from fedstrata.errors import check
from fedstrata.layout import Grain
from fedstrata.tables import put_rows, rows


@final
@dataclass(frozen=True)
class Angle(Weigh):
    """psi_k,l ~ n_k e^{f(theta_k,l)}: FedAdp (Wu & Wang 2021) by model, FedLayerWise (Lanjewar et al.) by layer.

    theta_k,l is the angle between the client's update and the mean one, averaged over the client's turns so far;
    f(theta) = alpha (1 - exp(-exp(-alpha (theta - 1)))). The paper prints +alpha within, which rewards large
    angles; minus agrees with its text and with FedAdp, sign=1 gives the print (D-06). count="round" averages over the
    rounds instead of the client's own turns (D-08).
    """

    alpha: float = 5.0
    grain: Grain = "layer"
    sign: Literal[-1, 1] = -1
    count: Literal["turns", "round"] = "turns"

    def validate(self):
        check(self.alpha > 0, f"Angle.alpha must be above 0; got {self.alpha}")

    @property
    def looks(self):
        return frozenset({"angle"})

    def init(self, layout, population):
        angle = layout.at(self.grain).full(0.0).expand(population, -1).clone()  # [N, L]
        return {"angle": angle, "turns": angle.new_zeros(population, 1)}

    def weights(self, state, round):
        ids, share = round.cohort.ids, round.share
        angle = torch.arccos(round.updates.cos_mean(self.grain))  # [K, L]  Eq. 1, with gradient norms (D-05)
        turns, old = rows(state["turns"], ids), rows(state["angle"], ids)
        after = turns + 1
        t = after if self.count == "turns" else turns.sign() * round.cohort.number + 1
        smooth = torch.lerp(old, angle, 1 / t)  # Eq. 4: (t - 1) / t old + 1 / t angle, the angle itself at first
        score = self.alpha * (1 - torch.exp(-torch.exp(self.sign * self.alpha * (smooth - 1))))  # Eq. 5
        round.note(angle=smooth)
        new = {"angle": put_rows(state["angle"], ids, smooth), "turns": put_rows(state["turns"], ids, after)}
        score = share.log()[:, None] + score
        return torch.exp(score - score.logsumexp(0)), new  # Eq. 6; torch.softmax wakes all threads for a few numbers
