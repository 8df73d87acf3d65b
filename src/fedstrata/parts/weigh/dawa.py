"""L-DAWA: each local layer counts by its cosine with the global one."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedstrata.core import Weigh
from fedstrata.errors import check
from fedstrata.layout import Grain


@final
@dataclass(frozen=True)
class Dawa(Weigh):
    """L-DAWA (Rehman et al. 2023): w_l' = 1/K sum_k cos(w_k,l, w_l) w_k,l, tensor by tensor.

    The weights sum to less than 1, so it shrinks by itself; normalised=True divides by their sum. A zero tensor has
    cosine 1. `floor` cuts cosines from below; in the first `warmup_rounds` it is FedAvg. include_buffers scales running
    statistics by their cosines too, as the authors' code does (D-13).
    """

    grain: Grain = "tensor"
    normalised: bool = False
    floor: float | None = None
    warmup_rounds: int = 0
    include_buffers: bool = False
    of = "model"

    def validate(self):
        check(self.warmup_rounds >= 0, f"Dawa.warmup_rounds must not be negative; got {self.warmup_rounds}")

    @property
    def looks(self):
        return frozenset({"moved"})

    def weights(self, state, round):
        share = round.share[:, None].expand(-1, round.layout.at(self.grain).depth)
        if round.cohort.number < self.warmup_rounds:
            return share, state
        cos = round.updates.cos_old(self.grain, when_zero=1.0)  # [K, L]
        round.note(cosine=cos)
        cos = cos if self.floor is None else cos.clamp_min(self.floor)
        total = cos.sum(0)
        if self.normalised:
            return torch.where(total != 0, cos / torch.where(total != 0, total, 1.0), share), state
        return cos / len(round.cohort), state

    def buffer_weights(self, weights, round):
        return round.share  # its weights are of layers, and need not sum to 1

    def treat(self, state, buffers, model, round):
        if not self.include_buffers or round.cohort.number < self.warmup_rounds:
            return buffers
        sent, old = round.buffers.clients, round.buffers.old
        long = [n for n, b in sent.items() if b.is_floating_point() and b.dim() > 1 and bool(old[n].isfinite().all())]
        return buffers | {n: _scaled(sent[n].double(), old[n].double()) for n in long}


def _scaled(b: Tensor, old: Tensor) -> Tensor:
    """1/K sum_k cos(b_k, b) b_k, [K, ...] -> [...]; cosine 1 where either is zero."""
    flat, o = b.flatten(1), old.flatten()
    size = flat.norm(dim=1) * o.norm()
    cos = torch.where(size > 0, flat @ o / size.clamp_min(1e-300), 1.0).clamp(-1, 1)
    return torch.tensordot(cos / len(b), b, 1)
