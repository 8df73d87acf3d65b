"""FedPBS: the proximal term only where a client's batches are small or its losses noisy."""

from dataclasses import dataclass
from typing import Literal, final

import torch

from fedstrata.core import Local
from fedstrata.errors import SettingError, check
from fedstrata.parts.select import Variance


@final
@dataclass(frozen=True)
class SelectiveProx(Local):
    """FedPBS (arXiv 2603.13909, Alg. 4): add mu/2 |w - w^t|^2 for clients with |B_k| < B_th or V_k > V_th only.

    |B_k| = min(B, n_k), times the client's entry in `resources` where that is given, at least 1; B_th = B unless given.
    V_th is the median of V over the last round's cohort (no test of the variance in the first round), or a number;
    with two_phase the cohort measures V first and the median is this round's. Eq. 12 prints mu |.|^2 and Eq. 13 half
    of it: half (D-15). The paper speaks of batches that fit a client's resources and has no formula: `resources`
    decides who is held back, not how clients train.
    """

    mu: float = 0.01
    batch: int | None = None
    threshold: float | Literal["median"] = "median"
    variance: Variance = "loss"
    two_phase: bool = False
    resources: tuple[float, ...] | None = None  # of client 0, 1, ..., each in (0, 1]
    elementwise = True

    def validate(self):
        check(self.mu >= 0, f"SelectiveProx.mu must not be negative; got {self.mu}")
        for r in self.resources or ():
            check(0 < r <= 1, f"SelectiveProx.resources must be in (0, 1]; got {r}")
        check(self.batch is None or self.batch >= 1, f"SelectiveProx.batch must be at least 1; got {self.batch}")

    @property
    def needs(self):
        return frozenset({f"{self.variance}_variance"})

    @property
    def private(self):
        return frozenset() if self.threshold == "median" else self.needs

    @property
    def asks(self):
        return self.needs if self.two_phase and self.threshold == "median" else frozenset()

    @property
    def additive(self):
        return self.threshold != "median"

    def init(self, layout, population):
        if self.resources is not None and len(self.resources) != population:
            raise SettingError(f"SelectiveProx.resources has {len(self.resources)} entries for {population} clients")
        at_first = torch.inf if self.threshold == "median" else self.threshold
        return {"threshold": torch.tensor(at_first, dtype=torch.float64, device=layout.device)}

    def brief(self, state, cohort):
        threshold = state["threshold"]
        if self.asks and len(cohort):
            threshold = cohort.stats[f"{self.variance}_variance"].double().quantile(0.5)
        told = {"threshold": threshold.expand(len(cohort))}
        if self.resources is not None:
            told["resource"] = torch.tensor(self.resources, dtype=torch.float64, device=cohort.ids.device)[cohort.ids]
        return told

    def correct(self, grad, w, turn):
        n, size = turn.stats["examples"], turn.training.batch
        held = self.batch or size
        batch = (n.clamp(max=size) if size else n) * turn.brief.get("resource", 1.0)
        small = batch.clamp_min(1) < held if held else torch.zeros_like(n, dtype=torch.bool)
        noisy = turn.stats[f"{self.variance}_variance"] > turn.brief["threshold"]
        return grad + (small | noisy).to(grad.dtype) * self.mu * (w - turn.start)

    def absorb(self, state, proposal, round):
        if self.threshold != "median":
            round.note(threshold=state["threshold"])
            return proposal, state
        variance = round.cohort.stats[f"{self.variance}_variance"].double()
        round.note(variance=variance)
        if not self.asks:  # else it was the median of all who were asked, and here are those who replied
            round.note(threshold=state["threshold"])
        return proposal, {"threshold": variance.quantile(0.5)}
