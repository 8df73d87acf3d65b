"""FedDC: every client carries its drift, and the server adds the mean drift back."""

from dataclasses import dataclass, replace
from typing import final

from fedstrata.core import Local
from fedstrata.errors import NeedError, check


@final
@dataclass(frozen=True)
class DC(Local):
    """FedDC (Gao et al. 2022): a client minimises F_k(u) + alpha/(2 omega_k) |u - w + h_k|^2 + <u, g/omega_k - g_k>.

    omega_k = n_k / mean of n over all clients
    h_k' = h_k + (w_k - w),   g_k' = g_k - g/omega_k + (w - w_k) / (steps lr)
    w' = mean_k w_k + mean over all clients of h',   g' = g + 1/N sum_k omega_k (g_k' - g_k)

    As the authors' code, which made the paper's numbers (D-20).
    """

    alpha: float = 0.01
    clip: float | None = None  # the largest norm of a gradient, 10 in the authors' code
    elementwise = True
    vectors = ("dg",)

    def validate(self):
        check(self.alpha > 0, f"DC.alpha must be above 0; got {self.alpha}")
        check(self.clip is None or self.clip > 0, f"DC.clip must be above 0; got {self.clip}")

    def adapt_training(self, training):
        return training if self.clip is None else replace(training, clip=self.clip)

    @property
    def means(self):
        return frozenset({"h", "g"})

    def init(self, layout, population):
        return {"h": layout.zeros(), "g": layout.zeros()}  # the mean drift, the mean update

    def enroll(self, task, buffers):
        return {"h": task.layout.zeros(), "g": task.layout.zeros()}

    def brief(self, state, cohort):
        omega = cohort.stats["examples"].double() / cohort.mean_examples
        return {"g": state["g"].expand(len(cohort), -1), "omega": omega}

    def correct(self, grad, w, turn):
        omega, g = turn.brief["omega"].to(w.dtype), turn.brief["g"]
        return grad + self.alpha / omega * (w - turn.start + turn.memory["h"]) - turn.memory["g"] + g / omega

    def report(self, w, turn):
        omega = turn.brief["omega"].to(w.dtype)
        change = (turn.began - w) / (turn.steps * turn.lr) - turn.brief["g"] / omega
        memory = {"h": turn.memory["h"] + (w - turn.start), "g": turn.memory["g"] + change}
        return memory, {"dg": omega * change}

    def absorb(self, state, proposal, round):
        if "dg" not in round.uploads:
            raise NeedError("DC needs each client's upload 'dg'")
        h = state["h"] + round.delta.sum(0) / round.cohort.population
        return proposal + h, {"h": h, "g": state["g"] + round.uploads["dg"].sum(0) / round.cohort.population}
