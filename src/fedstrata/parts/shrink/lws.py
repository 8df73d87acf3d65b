"""FedLWS: shrink each layer by how much the clients disagree in it."""

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from fedstrata.core import Round, Step
from fedstrata.errors import SettingError, check
from fedstrata.layout import Grain

Variant = Literal["full", "only_opt", "only_reg"]


@final
@dataclass(frozen=True)
class LWS(Step):
    """FedLWS (Shi et al. 2025, Alg. 1): w_l <- gamma_l w_l, gamma_l = |w^t_l| / (|w^t_l| + beta tau_l |w_l - w^t_l|).

    tau_l = 1/K sum_k |g_k,l - mean_j g_j,l|, the clients' disagreement, with g_k = w_k - w^t and an unweighted mean.
    A layer that is zero is left alone. variant "only_opt" shrinks the step alone, "only_reg" the old model alone.
    skip_norm = True leaves the scales and shifts of normalisation layers as they are.
    """

    beta: float = 0.1
    grain: Grain = "layer"
    variant: Variant = "full"
    skip_norm: bool = False
    slot = "shrink"

    def validate(self):
        check(self.beta >= 0, f"LWS.beta must not be negative; got {self.beta}")

    @property
    def looks(self):
        return frozenset({"apart"})

    def step(self, state, proposal, round):
        updates = round.updates
        tau = updates.apart(self.grain).mean(0)  # [L]
        size, move = updates.size(self.grain), updates.move(proposal, self.grain)
        gamma = torch.where(size > 0, size / (size + self.beta * tau * move).clamp_min(1e-300), 1.0)
        round.note(gamma=gamma, tau=tau)
        shrunk = _shrunk(proposal, gamma, self.grain, round, self.variant)
        if self.skip_norm:
            norm = torch.tensor(round.layout.norms(), device=proposal.device)
            shrunk = torch.where(round.layout.at("tensor").spread(norm) > 0, proposal, shrunk)
        return shrunk, state


@final
@dataclass(frozen=True)
class FixedShrink(Step):
    """FedLWS with given factors (Shi et al. 2025, Table 11): gamma_l falls from 1 to 0.96 in forward order."""

    gammas: tuple[float, ...] | None = None
    variant: Variant = "full"
    slot = "shrink"

    @property
    def additive(self):
        return True

    def validate(self):
        check(self.gammas != (), "FixedShrink.gammas must have a value for each layer; got none")
        check(all(g > 0 for g in self.gammas or ()), f"FixedShrink.gammas must be above 0; got {self.gammas}")

    def init(self, layout, population):
        if self.gammas is not None and len(self.gammas) != layout.depth:
            layers = f"{layout.depth} layers: {', '.join(layout.layers)}"
            raise SettingError(f"FixedShrink has {len(self.gammas)} gammas but the model has {layers}")
        return {}

    def step(self, state, proposal, round):
        given = self.gammas or torch.linspace(1, 0.96, round.layout.depth, dtype=torch.float64).tolist()
        gamma = torch.tensor(given, dtype=torch.float64, device=proposal.device)
        round.note(gamma=gamma)
        return _shrunk(proposal, gamma, "layer", round, self.variant), state


def _shrunk(proposal: Tensor, gamma: Tensor, grain: Grain, round: Round, variant: Variant) -> Tensor:
    """From w' = w - gamma eta g - (1 - gamma) w: both terms, the first alone, or the second alone."""
    if variant == "only_opt":
        return round.updates.blend(gamma, proposal, 1 - gamma, round.old, grain)
    if variant == "only_reg":
        return round.updates.blend(torch.ones_like(gamma), proposal, gamma - 1, round.old, grain)
    return round.updates.scale(gamma, proposal, grain)
