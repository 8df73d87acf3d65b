"""The shrinking factor of least loss on data of the server's own: what FedLWS's Figure 1 compares its guess with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from fedstrata.core import Step
from fedstrata.errors import check

GOLDEN = (5**0.5 - 1) / 2


@final
@dataclass(frozen=True)
class BestShrink(Step):
    """w <- gamma w with the gamma of least proxy loss in [low, 1] (Shi et al. 2025, Figure 1a), by golden section.

    Notes tau, the clients' disagreement (eq. 4), and r = (1 - gamma) |w^t| / (gamma |w - w^t|) (eq. 5), of the whole
    model.
    """

    low: float = 0.5
    tries: int = 14
    slot = "shrink"

    def validate(self):
        check(0 < self.low < 1, f"BestShrink.low must be in (0, 1); got {self.low}")
        check(self.tries >= 1, f"BestShrink.tries must be at least 1; got {self.tries}")

    @property
    def needs(self):
        return frozenset({"proxy"})

    @property
    def looks(self):
        return frozenset({"apart"})

    def step(self, state, proposal, round):
        proxy = round.proxy
        assert proxy is not None  # checked before anything ran
        buffers = round.buffers.mean(round.share, round.cohort.stats["examples"], rounded=True)
        with torch.no_grad():
            gamma = least(lambda g: float(proxy.loss(g * proposal, buffers)), self.low, 1.0, self.tries)
        updates = round.updates
        size, move = updates.size("model"), updates.move(proposal, "model")
        ratio = (1 - gamma) * size / (gamma * move).clamp_min(1e-300)
        round.note(gamma=torch.full_like(size, gamma), tau=updates.apart("model").mean(0), ratio=ratio)
        return gamma * proposal, state


def least(value: Callable[[float], float], low: float, high: float, tries: int) -> float:
    """Where a function that falls and then rises is least, to 0.618^tries of the width; the end if it only falls."""
    a, b = low, high
    c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    at_c, at_d = value(c), value(d)
    for _ in range(tries):
        if at_c < at_d:
            b, d, at_d = d, c, at_c
            c = b - GOLDEN * (b - a)
            at_c = value(c)
        else:
            a, c, at_c = c, d, at_d
            d = a + GOLDEN * (b - a)
            at_d = value(d)
    middle = (a + b) / 2
    return high if value(high) <= value(middle) else middle
