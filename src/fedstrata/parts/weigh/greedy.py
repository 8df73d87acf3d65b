"""A reconstruction of FedGA's greedy aggregation: its text and code could not be had, so nothing is claimed for it."""

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from fedstrata.core import Round, Weigh
from fedstrata.errors import check


@final
@dataclass(frozen=True)
class FedGAReconstruction(Weigh):
    """FedGA, reconstructed from one sentence about it: clients count by their contribution to the common direction.

    "contribution": weights ~ p_k s_k, s_k = max(0, <D_k, mean D> / |mean D|), the m largest kept (all unless given).
    "validation": in the order of their loss on the server's data, clients join until the merged loss would rise.
    """

    by: Literal["contribution", "validation"] = "contribution"
    m: int | None = None

    def validate(self):
        check(self.m is None or self.m >= 1, f"FedGAReconstruction.m must be at least 1; got {self.m}")

    @property
    def needs(self):
        return frozenset({"proxy"}) if self.by == "validation" else frozenset()

    @property
    def looks(self):
        return frozenset({"angle"}) if self.by == "contribution" else frozenset()

    def weights(self, state, round):
        raw = self._contribution(round) if self.by == "contribution" else self._validation(round)
        return torch.where(raw.sum() > 0, raw / raw.sum().clamp_min(1e-300), round.share)[:, None], state

    def _contribution(self, round: Round) -> Tensor:
        share, updates = round.share, round.updates
        score = (updates.norm("model") * updates.cos_mean("model")).clamp_min(0)[:, 0]  # <D_k, mean D> / |mean D|
        kept = torch.argsort(score, descending=True, stable=True)[: self.m]
        round.note(contribution=score)
        return torch.zeros_like(score).index_copy(0, kept, (share * score)[kept])

    def _validation(self, round: Round) -> Tensor:
        assert round.proxy is not None  # checked before anything ran
        with torch.no_grad():
            alone = [round.proxy.loss(round.old + d, round.buffers.of(k)) for k, d in enumerate(round.delta)]
            losses = torch.stack(alone)
            chosen, best = torch.zeros_like(round.share), torch.inf
            for k in torch.argsort(losses, stable=True).tolist():
                tried = chosen.index_copy(0, torch.tensor([k], device=chosen.device), round.share[k : k + 1])
                weights = tried / tried.sum()
                buffers = round.buffers.settled(round.buffers.mean(weights, weights))
                loss = float(round.proxy.loss(self.mix(weights[:, None], round), buffers))
                if loss > best:
                    break
                chosen, best = tried, loss
        return chosen
