"""FedPBS: the proximal term only where a client's batches are small or its losses noisy."""

from dataclasses import dataclass
from typing import Literal, final

import torch

from fedstrata.core import Local
from fedstrata.errors import check
from fedstrata.parts.select import Variance


@final
@dataclass(frozen=True)
class SelectiveProx(Local):
    """FedPBS (arXiv 2603.13909, Alg. 4): add mu/2 |w - w^t|^2 for clients with |B_k| < B_th or V_k > V_th only.

    |B_k| = min(B, n_k) and B_th = B unless given. V_th is the median of V over the last round's cohort (no test of the
    variance in the first round), or a number. Eq. 12 prints mu |.|^2 and Eq. 13 half of it: half (D-15).
    """

    mu: float = 0.01
    batch: int | None = None
    threshold: float | Literal["median"] = "median"
    variance: Variance = "loss"

    def validate(self):
        check(self.mu >= 0, f"SelectiveProx.mu must not be negative; got {self.mu}")
        check(self.batch is None or self.batch >= 1, f"SelectiveProx.batch must be at least 1; got {self.batch}")

    @property
    def needs(self):
        return frozenset({f"{self.variance}_variance"})

    def init(self, layout, population):
        at_first = torch.inf if self.threshold == "median" else self.threshold
        return {"threshold": torch.tensor(at_first, dtype=torch.float64, device=layout.device)}

    def brief(self, state, cohort):
        return {"threshold": state["threshold"].expand(len(cohort))}

    def correct(self, grad, w, turn):
        n, size = turn.stats["examples"], turn.training.batch
        held = self.batch or size
        small = (n.clamp(max=size) if size else n) < held if held else torch.zeros_like(n, dtype=torch.bool)
        noisy = turn.stats[f"{self.variance}_variance"] > turn.brief["threshold"]
        return grad + (small | noisy).to(grad.dtype) * self.mu * (w - turn.start)

    def absorb(self, state, proposal, round):
        variance = round.cohort.stats[f"{self.variance}_variance"].double()
        round.note(variance=variance, threshold=state["threshold"])
        return proposal, {"threshold": variance.quantile(0.5)} if self.threshold == "median" else state
