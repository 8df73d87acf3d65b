"""FedLAW: client weights and one shrinking factor, learned on data of the server's own."""

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from fedstrata.core import Round, Weigh
from fedstrata.errors import check


@final
@dataclass(frozen=True)
class Learned(Weigh):
    """FedLAW (Li et al. 2023): w' = gamma sum_k lambda_k w_k, gamma > 0, lambda on the simplex, of least proxy loss.

    "exp": gamma = e^{x_0}, lambda = softmax(x), from FedAvg. "quad": gamma = x_0^2, lambda_k = x_k^2 / sum x^2, from
    equal weights. Adam with betas (0.5, 0.999); the rate is halved every 20 epochs. The authors' code runs 20
    epochs; FedLWS reports 100 for its comparison (D-14).
    """

    epochs: int = 20
    lr: float = 0.01
    batch: int = 128
    by: Literal["exp", "quad"] = "exp"
    of = "model"

    def validate(self):
        check(self.epochs >= 0, f"Learned.epochs must not be negative; got {self.epochs}")
        check(self.lr > 0, f"Learned.lr must be above 0; got {self.lr}")
        check(self.batch >= 1, f"Learned.batch must be at least 1; got {self.batch}")

    @property
    def needs(self):
        return frozenset({"proxy"})

    def weights(self, state, round):
        assert round.proxy is not None  # checked before anything ran
        x = self._start(round).requires_grad_()
        adam = torch.optim.Adam([x], self.lr, betas=(0.5, 0.999))
        halving = torch.optim.lr_scheduler.StepLR(adam, 20, 0.5)
        for _ in range(self.epochs):
            for part in round.proxy.batches(self.batch):
                adam.zero_grad()
                part.loss(self.mix(self._weights(x), round)).backward()
                adam.step()
            halving.step()
        weights = self._weights(x.detach())
        round.note(gamma=weights.sum()[None])
        return weights, state

    def _start(self, round: Round) -> Tensor:
        """x_1..x_K and x_0 last."""
        share = round.share
        if self.by == "exp":
            return torch.cat([share.log(), share.new_zeros(1)])
        return torch.cat([torch.full_like(share, len(share) ** -0.5), share.new_ones(1)])

    def _weights(self, x: Tensor) -> Tensor:
        """gamma lambda_k, [K, 1]."""
        if self.by == "exp":
            return (x[-1].exp() * torch.softmax(x[:-1], 0))[:, None]
        return (x[-1].square() * x[:-1].square() / x[:-1].square().sum())[:, None]

    def buffer_weights(self, weights, round):
        return weights[:, 0] / weights.sum()  # lambda alone: buffers are never shrunk
