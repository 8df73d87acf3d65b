"""Per-layer adaptive mu: hold back most what moves most."""

from dataclasses import dataclass
from typing import final

import torch

from fedstrata.core import Local
from fedstrata.errors import check
from fedstrata.layout import Grain


@final
@dataclass(frozen=True)
class AdaptiveProx(Local):
    """Per-Layer Adaptive mu: FedProx whose mu_l follows how far the global layer moved in the last round.

    mu_l <- (1 - alpha) mu_l + alpha mu d_l / max_j d_j,   d_l = |w^{t+1}_l - w^t_l|
    """

    mu: float = 0.01
    alpha: float = 0.5
    grain: Grain = "tensor"  # the paper's layer is the parameter tensor (D-04)
    mu_init: float | None = None  # unstated in the paper; mu itself unless given (D-02)
    elementwise = True

    def validate(self):
        check(self.mu >= 0, f"AdaptiveProx.mu must not be negative; got {self.mu}")
        check(0 <= self.alpha <= 1, f"AdaptiveProx.alpha must be in [0, 1]; got {self.alpha}")
        check(
            self.mu_init is None or self.mu_init >= 0, f"AdaptiveProx.mu_init must not be negative; got {self.mu_init}"
        )

    @property
    def additive(self):
        return True  # it looks at models only

    def init(self, layout, population):
        return {"mu": layout.at(self.grain).full(self.mu if self.mu_init is None else self.mu_init)}

    def brief(self, state, cohort):
        return {"mu": state["mu"].expand(len(cohort), -1)}  # [K, L]

    def correct(self, grad, w, turn):
        return grad + turn.task.layout.at(self.grain).spread(turn.brief["mu"]) * (w - turn.start)

    def settle(self, state, model, round):
        d = round.layout.at(self.grain).distance(model, round.old)  # [L]  new minus previous global model (D-03)
        target = self.mu * d / d.max().clamp_min(1e-300)
        mu = (1 - self.alpha) * state["mu"] + self.alpha * target
        mu = torch.where(d.max() > 0, mu, state["mu"])  # nothing moved: nothing learned
        round.note(mu=mu)
        return {"mu": mu}
