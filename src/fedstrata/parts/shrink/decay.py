"""AWD and AdaDecay: weight decay on the server, to compare shrinking with."""

from dataclasses import dataclass
from typing import final

import torch

from fedstrata.core import Step
from fedstrata.errors import check
from fedstrata.layout import Layout


@final
@dataclass(frozen=True)
class AWD(Step):
    """AWD on the server (Ghiasi et al. 2023): w' = w_hat - r w, r <- 0.1 r + 0.9 strength |w_hat - w| / |w|."""

    strength: float = 0.02  # not given in the paper that compares with it
    slot = "shrink"

    @property
    def additive(self):
        return True

    def validate(self):
        check(self.strength >= 0, f"AWD.strength must not be negative; got {self.strength}")

    def init(self, layout, population):
        return {"rate": layout.at("model").full(0.0)}

    def step(self, state, proposal, round):
        updates = round.updates
        size, move = updates.size("model"), updates.move(proposal, "model")
        now = torch.where(size > 0, self.strength * move / size.clamp_min(1e-300), 0.0)
        rate = 0.1 * state["rate"] + 0.9 * now
        round.note(rate=rate)
        return updates.blend(torch.ones_like(rate), proposal, -rate, round.old, "model"), {"rate": rate}


@final
@dataclass(frozen=True)
class AdaDecay(Step):
    """AdaDecay on the server (Nakamura & Hong 2019): w' = w_hat - strength theta w, elementwise.

    theta_j = 2 / (1 + e^{-alpha z_j}), z_j = (a_j - mean a) / std a within each tensor, a = |w_hat - w|.
    """

    alpha: float = 4.0
    strength: float = 5e-4  # not given in the paper that compares with it
    slot = "shrink"

    @property
    def additive(self):
        return True

    def validate(self):
        check(self.strength >= 0, f"AdaDecay.strength must not be negative; got {self.strength}")

    def step(self, state, proposal, round):
        layout = round.layout.at("tensor")
        moved = (proposal - round.old).abs().double()
        gap = moved - _spread(layout, layout.total(moved) / _lengths(layout))
        std = _spread(layout, (layout.total(gap.square()) / _lengths(layout)).sqrt())
        size = _spread(layout, layout.norm(round.old + moved) / _lengths(layout).sqrt())
        noise = torch.finfo(proposal.dtype).eps * size  # what rounding alone makes of an even movement
        z = torch.where(std > noise, gap / std.clamp_min(1e-300), 0.0)
        theta = 2 * torch.sigmoid(self.alpha * z)
        return proposal - (self.strength * theta * round.old).to(proposal.dtype), state


def _lengths(layout: Layout) -> torch.Tensor:
    return torch.tensor(layout.lengths, dtype=torch.float64, device=layout.device)


def _spread(layout: Layout, values: torch.Tensor) -> torch.Tensor:
    """One value a tensor over its parameters, in float64."""
    return values.repeat_interleave(torch.tensor(layout.lengths, device=values.device))
