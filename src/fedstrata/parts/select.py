"""Who takes part: everyone, a sample, or the calmest. Clients without data are never asked."""

from dataclasses import dataclass
from typing import Literal, final

import torch

from fedstrata.core import Select
from fedstrata.errors import SettingError, check

Variance = Literal["gradient", "loss", "last_layer_gradient"]
"""Of what a client tells the variance; a gradient is the whole model's or only that of its last layer."""


@final
@dataclass(frozen=True)
class Everyone(Select):
    """All clients that have data."""

    def pick(self, state, stats, rng):
        return torch.arange(len(stats["examples"])), state


@final
@dataclass(frozen=True)
class Sample(Select):
    """k clients, or a fraction of them, at random without replacement: uniformly, or in proportion to n_k."""

    k: int | None = None
    fraction: float | None = None
    by: Literal["uniform", "size"] = "uniform"

    def validate(self):
        if (self.k is None) == (self.fraction is None):
            raise SettingError("Sample needs either k or fraction, e.g. Sample(k=10) or Sample(fraction=0.1)")
        check(self.k is None or self.k >= 1, f"Sample.k must be at least 1; got {self.k}")
        check(
            self.fraction is None or 0 < self.fraction <= 1, f"Sample.fraction must be in (0, 1]; got {self.fraction}"
        )

    def pick(self, state, stats, rng):
        n = stats["examples"].double().cpu().numpy()
        p = n / n.sum() if self.by == "size" else None
        return torch.from_numpy(rng.choice(len(n), self.size(len(n)), replace=False, p=p)), state

    def size(self, population):
        return min(population, self.k or max(1, round((self.fraction or 0) * population)))


@final
@dataclass(frozen=True)
class Calmest(Select):
    """FedBS, phase 1 (as defined in arXiv 2603.13909, 3.4.1): the k clients with the smallest a_k V_k.

    V_k is measured by every client at the global model on one mini-batch; a_k = 1, or n_k / n with by="size".
    Ties go to the lower client; a client whose V_k is not finite is left out. k = None keeps all.
    """

    k: int | None = None
    variance: Variance = "gradient"
    by: Literal["uniform", "size"] = "uniform"

    def validate(self):
        check(self.k is None or self.k >= 1, f"Calmest.k must be at least 1; got {self.k}")

    @property
    def needs(self):
        return frozenset({f"{self.variance}_variance"})

    @property
    def asks(self):
        return self.needs

    def pick(self, state, stats, rng):
        score = stats[f"{self.variance}_variance"].double()
        if self.by == "size":
            score = score * stats["examples"] / stats["examples"].sum()
        ranked = torch.argsort(score.nan_to_num(torch.inf, torch.inf), stable=True)
        return ranked[score[ranked].isfinite()][: self.k].cpu(), state
