"""FedDyn: a linear term makes the clients' optima agree with the federation's."""

from dataclasses import dataclass
from typing import final

from fedstrata.core import Local
from fedstrata.errors import check


@final
@dataclass(frozen=True)
class Dyn(Local):
    """FedDyn (Acar et al. 2021, Alg. 1): a client minimises F_k(u) - <g_k, u> + alpha/2 |u - w|^2.

    g_k' = g_k - alpha (w_k - w),   h' = h - alpha/N sum_k (w_k - w),   w' = mean_k w_k - h' / alpha
    """

    alpha: float = 0.01

    def validate(self):
        check(self.alpha > 0, f"Dyn.alpha must be above 0, as FedDyn divides by it; got {self.alpha}")

    def init(self, layout, population):
        return {"h": layout.zeros()}

    def enroll(self, task, buffers):
        return {"g": task.layout.zeros()}

    def correct(self, grad, w, turn):
        return grad - turn.memory["g"] + self.alpha * (w - turn.start)  # gradient of Eq. 1

    def report(self, w, turn):
        return {"g": turn.memory["g"] - self.alpha * (w - turn.start)}, {}

    def absorb(self, state, proposal, round):
        h = state["h"] - self.alpha * round.delta.sum(0) / round.cohort.population
        return proposal - h / self.alpha, {"h": h}
