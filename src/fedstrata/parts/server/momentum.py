"""FedAvgM, and a plain server learning rate."""

from dataclasses import dataclass
from typing import final

from fedstrata.core import Step
from fedstrata.errors import check


@final
@dataclass(frozen=True)
class Rate(Step):
    """A server learning rate (FedAvg, SCAFFOLD): w' = w + lr (w_hat - w)."""

    lr: float = 1.0

    @property
    def additive(self):
        return True

    def validate(self):
        check(self.lr > 0, f"Rate.lr must be above 0; got {self.lr}")

    def step(self, state, proposal, round):
        return round.old + self.lr * (proposal - round.old), state


@final
@dataclass(frozen=True)
class Momentum(Step):
    """FedAvgM (Hsu et al. 2019): v' = beta v + (1 - dampening) (w - w_hat), w' = w - lr v'.

    dampening = beta is what the MOON and FedDisco repositories run.
    """

    beta: float = 0.9
    lr: float = 1.0
    dampening: float = 0.0

    @property
    def additive(self):
        return True

    def validate(self):
        check(0 <= self.beta < 1, f"Momentum.beta must be in [0, 1); got {self.beta}")
        check(self.lr > 0, f"Momentum.lr must be above 0; got {self.lr}")
        check(0 <= self.dampening < 1, f"Momentum.dampening must be in [0, 1); got {self.dampening}")

    def init(self, layout, population):
        return {"v": layout.zeros()}

    def step(self, state, proposal, round):
        v = self.beta * state["v"] + (1 - self.dampening) * (round.old - proposal)
        return round.old - self.lr * v, {"v": v}
