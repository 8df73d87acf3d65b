"""Fairness: q-FedAvg, AFL and FairFed give more weight to the clients that the model serves badly."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedstrata.core import Weigh
from fedstrata.errors import NeedError, check
from fedstrata.tables import put_rows, rows


@final
@dataclass(frozen=True)
class Q(Weigh):
    """q-FedAvg (Li et al. 2020b, Alg. 2): w' = w - sum_k F_k^q d_k / sum_k (q F_k^{q-1} |d_k|^2 + F_k^q / lr).

    d_k = (w - w_k) / lr and F_k is the client's loss at w. q = 0 is the plain mean.
    """

    q: float = 1.0

    def validate(self):
        check(self.q >= 0, f"Q.q must not be negative; got {self.q}")

    @property
    def needs(self):
        return frozenset({"loss"})

    def weights(self, state, round):
        if round.lr is None:
            raise NeedError("Q needs the clients' learning rate: give lr")
        f = round.cohort.stats["loss"].double() + 1e-10  # [K]
        d2 = (round.updates.norm("model")[:, 0] / round.lr).square()
        total = (self.q * f ** (self.q - 1) * d2 + f**self.q / round.lr).sum()
        return (f**self.q / round.lr / total)[:, None], state

    def buffer_weights(self, weights, round):
        return round.share  # its weights are of steps and need not sum to 1


@final
@dataclass(frozen=True)
class AFL(Weigh):
    """AFL (Mohri et al. 2019): weights lambda on the simplex of all clients, lambda <- Proj(lambda + lr F_k(w)).

    They start equal. When not everyone takes part, the cohort's lambdas are scaled to sum to 1. What is evaluated and
    handed out is the mean of the global models of all rounds, as in the paper; average = False shows the last one.
    """

    lr: float = 0.1
    average: bool = True

    def validate(self):
        check(self.lr >= 0, f"AFL.lr must not be negative; got {self.lr}")

    @property
    def needs(self):
        return frozenset({"loss"})

    def init(self, layout, population):
        equal = torch.full((population,), 1 / population, dtype=torch.float64, device=layout.device)
        return {"lambda": equal, "sum": layout.zeros().double(), "rounds": layout.at("model").full(0.0)}

    def weights(self, state, round):
        ids = round.cohort.ids
        now = rows(state["lambda"], ids)
        raised = put_rows(state["lambda"], ids, now + self.lr * round.cohort.stats["loss"].double())
        after = on_simplex(raised)
        round.note(adversary=rows(after, ids))
        weights = torch.where(now.sum() > 0, now / now.sum().clamp_min(1e-300), round.share)
        total = torch.where(state["rounds"] > 0, state["sum"] + round.old, 0.0)  # the first is nobody's yet
        return weights[:, None], {"lambda": after, "sum": total, "rounds": state["rounds"] + 1}

    def shown(self, state, model):
        return ((state["sum"] + model) / state["rounds"].clamp_min(1)).to(model.dtype) if self.average else model


@final
@dataclass(frozen=True)
class FairFed(Weigh):
    """FairFed (Ezzeldin et al. 2023): raw_k <- raw_k - beta (gap_k - mean gap), clipped at 0 and normalised, from p_k.

    gap_k is how far the global model's accuracy on client k is from its accuracy on all of them together.
    """

    beta: float = 1.0

    @property
    def needs(self):
        return frozenset({"accuracy"})

    def init(self, layout, population):
        zeros = torch.zeros(population, dtype=torch.float64, device=layout.device)
        return {"raw": zeros, "seen": zeros.clone()}

    def weights(self, state, round):
        ids, share = round.cohort.ids, round.share
        accuracy = round.cohort.stats["accuracy"].double()
        gap = (accuracy - (share * accuracy).sum()).abs()
        old = torch.where(rows(state["seen"], ids) > 0, rows(state["raw"], ids), share)
        raw = old - self.beta * (gap - gap.mean())
        round.note(gap=gap)
        cut = raw.clamp_min(0)
        weights = torch.where(cut.sum() > 0, cut / cut.sum().clamp_min(1e-300), share)
        new = {"raw": put_rows(state["raw"], ids, raw), "seen": put_rows(state["seen"], ids, torch.ones_like(raw))}
        return weights[:, None], new


def on_simplex(v: Tensor) -> Tensor:
    """The nearest point, [N], whose entries are not negative and sum to 1 (Duchi et al. 2008)."""
    down = v.sort(descending=True).values
    above = (down.cumsum(0) - 1) / torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    last = (down > above).nonzero().max()
    return (v - above[last]).clamp_min(0)
