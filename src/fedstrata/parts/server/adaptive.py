"""FedOpt: Adagrad, Adam and Yogi on the server."""

from abc import abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import final

import torch
from torch import Tensor

from fedstrata.core import Step
from fedstrata.errors import check


@dataclass(frozen=True)
class _FedOpt(Step):
    """Reddi et al. 2021, Alg. 2, with D = w_hat - w: m' = beta1 m + (1 - beta1) D, w' = w + lr m' / (sqrt v' + tau).

    In float32 at least: in half precision a small tau is 0, and so is the square of a small D.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    v_init: float | None = None  # tau**2, as the published box asks; Flower starts at 0 (D-18)
    bias_correction: bool = False  # Flower's FedAdam corrects, with the round counted from 1 (D-18)

    @property
    def additive(self):
        return True

    def validate(self):
        name = type(self).__name__
        check(self.lr > 0, f"{name}.lr must be above 0; got {self.lr}")
        check(0 <= self.beta1 < 1, f"{name}.beta1 must be in [0, 1); got {self.beta1}")
        check(0 <= self.beta2 < 1, f"{name}.beta2 must be in [0, 1); got {self.beta2}")
        check(self.tau > 0, f"{name}.tau must be above 0; got {self.tau}")
        check(self.v_init is None or self.v_init >= 0, f"{name}.v_init must not be negative; got {self.v_init}")

    @abstractmethod
    def second(self, v: Tensor, d2: Tensor) -> Tensor:
        """v', from v and the squared update."""

    def init(self, layout, population):
        m = layout.zeros().to(torch.promote_types(layout.dtype, torch.float32))
        v = torch.full_like(m, self.tau**2 if self.v_init is None else self.v_init)
        return {"m": m, "v": v, "steps": layout.at("model").full(0.0)}

    def step(self, state, proposal, round):
        d = (proposal - round.old).to(state["m"].dtype)
        m = self.beta1 * state["m"] + (1 - self.beta1) * d
        v = self.second(state["v"], d.square())
        steps = state["steps"] + 1
        lr = self.lr
        if self.bias_correction:
            r = float(steps) + 1
            lr = lr * sqrt(1 - self.beta2**r) / (1 - self.beta1**r)
        w = (round.old + lr * m / (v.sqrt() + self.tau)).to(round.old.dtype)
        return w, {"m": m, "v": v, "steps": steps}


@final
@dataclass(frozen=True)
class Adagrad(_FedOpt):
    """FedAdagrad (Reddi et al. 2021, Alg. 2): v' = v + D^2, w' = w + lr m' / (sqrt v' + tau)."""

    beta1: float = 0.0

    def second(self, v, d2):
        return v + d2


@final
@dataclass(frozen=True)
class Adam(_FedOpt):
    """FedAdam (Reddi et al. 2021, Alg. 2): v' = beta2 v + (1 - beta2) D^2, w' = w + lr m' / (sqrt v' + tau)."""

    def second(self, v, d2):
        return self.beta2 * v + (1 - self.beta2) * d2


@final
@dataclass(frozen=True)
class Yogi(_FedOpt):
    """FedYogi (Reddi et al. 2021, Alg. 2): v' = v - (1 - beta2) D^2 sign(v - D^2), w' = w + lr m' / (sqrt v' + tau)."""

    lr: float = 0.01

    def second(self, v, d2):
        return v - (1 - self.beta2) * d2 * torch.sign(v - d2)
