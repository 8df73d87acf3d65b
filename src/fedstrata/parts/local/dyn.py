"""FedDyn: a linear term makes the clients' optima agree with the federation's."""

from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from fedstrata.core import Local
from fedstrata.errors import check
from fedstrata.tables import put_rows


@final
@dataclass(frozen=True)
class Dyn(Local):
    """FedDyn (Acar et al. 2021, Alg. 1): a client minimises F_k(u) - <g_k, u> + alpha/2 |u - w|^2.

    g_k' = g_k - alpha (w_k - w),   h' = h - alpha/N sum_k (w_k - w),   w' = mean_k w_k - h' / alpha

    by_size scales a client's alpha by mean(n) / n_k, as the authors' code can. clip is theirs too, at 10: the largest
    norm of a gradient. show = "participants" evaluates the mean of the cohort's models instead of w', "all" the mean
    of every client's last model, as the authors' plots do (the server then keeps N models). Code built on FedLAW has
    alpha/2 |u - w| (unsquared) and h' = h - alpha sum_k p_k (w_k - w) (over = "cohort"), by mistake (D-11).
    """

    alpha: float = 0.01
    by_size: bool = False
    clip: float | None = None
    show: Literal["server", "participants", "all"] = "server"
    unsquared: bool = False
    over: Literal["all", "cohort"] = "all"
    elementwise = True

    def validate(self):
        check(self.alpha > 0, f"Dyn.alpha must be above 0, as FedDyn divides by it; got {self.alpha}")
        check(self.clip is None or self.clip > 0, f"Dyn.clip must be above 0; got {self.clip}")

    def adapt_training(self, training):
        return training if self.clip is None else replace(training, clip=self.clip)

    @property
    def means(self):
        return frozenset({"h"} if self.over == "all" else ())

    def init(self, layout, population):
        state = {"h": layout.zeros()}
        if self.show == "participants":
            state |= {"mean": layout.zeros(), "rounds": layout.at("model").full(0.0)}
        if self.show == "all":
            last = layout.zeros().expand(population, -1).clone()  # [N, P]
            state |= {"first": layout.zeros(), "last": last, "seen": last.new_zeros(population, 1)}
        return state

    def enroll(self, task, buffers):
        return {"g": task.layout.zeros()}

    def brief(self, state, cohort):
        if not self.by_size:
            return {}
        return {"alpha": self.alpha * cohort.mean_examples / cohort.stats["examples"].double()}

    def correct(self, grad, w, turn):
        gap = w - turn.start
        pull = self._alpha(turn, w) * gap  # gradient of Eq. 1
        if self.unsquared:
            pull = pull / 2 / torch.linalg.vector_norm(gap, dim=-1, keepdim=True).clamp_min(1e-30)
        return grad - turn.memory["g"] + pull

    def report(self, w, turn):
        return {"g": turn.memory["g"] - self._alpha(turn, w) * (w - turn.start)}, {}

    def absorb(self, state, proposal, round):
        if self.over == "all":
            moved = round.delta.sum(0) / round.cohort.population
        else:
            moved = round.share.to(round.delta.dtype) @ round.delta
        h = state["h"] - self.alpha * moved
        return proposal - h / self.alpha, state | {"h": h} | self._seen(state, round)

    def shown(self, state, model):
        if self.show == "participants":
            return torch.where(state["rounds"] > 0, state["mean"], model)
        if self.show == "all":
            seen = state["seen"].sum()
            mean = (state["last"].sum(0) + (len(state["seen"]) - seen) * state["first"]) / len(state["seen"])
            return torch.where(seen > 0, mean, model)
        return model

    def _alpha(self, turn, w: Tensor) -> Tensor | float:
        return turn.brief["alpha"].to(w.dtype) if self.by_size else self.alpha

    def _seen(self, state, round):
        """What is kept for `shown`."""
        if self.show == "participants":
            return {"mean": round.old + round.delta.mean(0), "rounds": state["rounds"] + 1}
        if self.show == "all":
            ids, ones = round.cohort.ids, round.delta.new_ones(len(round.cohort), 1)
            first = torch.where(state["seen"].sum() > 0, state["first"], round.old)
            last = put_rows(state["last"], ids, round.old + round.delta)
            return {"first": first, "last": last, "seen": put_rows(state["seen"], ids, ones)}
        return {}
