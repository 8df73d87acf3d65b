"""FedLAMA: layers in which clients agree are averaged less often."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedstrata.core import Local
from fedstrata.errors import check
from fedstrata.layout import Layout


@final
@dataclass(frozen=True)
class Intervals(Local):
    """FedLAMA (Lee et al. 2023, Alg. 2): every tensor is averaged each round, or only every phi rounds.

    D_l = mean_k |w_l - w_k,l|^2 / interval_l when l is averaged. Every phi rounds, once `warmup` are over: in the order
    of D_l / size_l, tensors take the long interval up to the first where 1 - (share of size) < (share of D); all do
    where nobody differs. Tensors with one dimension are averaged each round. In between, a client goes on from its own
    values; one that sat out since the last average starts from that. After a round that is no multiple of phi the
    global model is part old.
    """

    phi: int = 2
    warmup: int = 6

    def validate(self):
        check(self.phi >= 1, f"Intervals.phi must be at least 1; got {self.phi}")
        check(self.warmup >= 0, f"Intervals.warmup must not be negative; got {self.warmup}")

    def init(self, layout, population):
        one = layout.at("tensor").full(1.0)
        return {"interval": one, "discrepancy": 0 * one, "averaged": -one}  # in which round it last was

    def enroll(self, task, buffers):
        return {"own": task.layout.zeros(), "round": task.layout.at("model").full(-1.0)[0]}

    def brief(self, state, cohort):
        since = state["averaged"].expand(len(cohort), -1)
        return {"averaged": since, "round": torch.full_like(since[:, 0], cohort.number)}

    def begin(self, w, turn):
        keeps = turn.memory["round"] > turn.brief["averaged"]  # it trained on after the last average
        return torch.where(turn.task.layout.at("tensor").spread(keeps) > 0, turn.memory["own"], w)

    def report(self, w, turn):
        return {"own": w, "round": turn.brief["round"]}, {}

    def absorb(self, state, proposal, round):
        layout, number = round.layout.at("tensor"), round.cohort.number
        due = (number + 1) % state["interval"] == 0  # [T]
        gap = layout.distance(round.delta, proposal - round.old).square().mean(0)
        length = round.updates.size("tensor") + round.updates.norm("tensor").mean(0)
        noise = 4 * torch.finfo(proposal.dtype).eps * length
        gap = torch.where(gap > noise.square(), gap, 0.0) / state["interval"]  # what rounding makes does not count
        gap = torch.where(due, gap, state["discrepancy"])
        interval = state["interval"]
        if (number + 1) % self.phi == 0 and number >= self.warmup:
            interval = self._intervals(gap, layout)
        round.note(interval=interval)
        new = torch.where(layout.spread(due) > 0, proposal, round.old)
        averaged = torch.where(due, float(number), state["averaged"])
        return new, {"interval": interval, "discrepancy": gap, "averaged": averaged}

    def _intervals(self, gap: Tensor, layout: Layout) -> Tensor:
        """phi for the tensors in which the clients agree, 1 for the others, [T]."""
        size = torch.tensor(layout.lengths, dtype=gap.dtype, device=gap.device)
        kernel = torch.tensor([len(s) > 1 for _, s in layout.tensors], device=gap.device)
        order = torch.argsort(gap / size.clamp_min(1), stable=True)
        order = order[kernel[order]]
        of_size = size[order].cumsum(0) / size[order].sum().clamp_min(1)
        of_gap = gap[order].cumsum(0) / gap[order].sum().clamp_min(1e-300)
        crossed = (1 - of_size < of_gap).cumsum(0)  # 1 at the first where it holds, more beyond
        long = order[crossed - (1 - of_size < of_gap).long() == 0]
        return torch.ones_like(gap).index_fill(0, long, float(self.phi))
