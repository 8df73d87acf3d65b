"""FedLAW: client weights and one shrinking factor, learned on data of the server's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from fedstrata.capture import Replayed
from fedstrata.core import Round, Weigh
from fedstrata.errors import check
from fedstrata.optim import Adam
from fedstrata.rng import torch_seed


@final
@dataclass(frozen=True)
class Learned(Weigh):
    """FedLAW (Li et al. 2023): w' = gamma sum_k lambda_k w_k, gamma > 0, lambda on the simplex, of least proxy loss.

    "exp": gamma = e^{x_0}, lambda = softmax(x), from FedAvg. "quad": gamma = x_0^2, lambda_k = x_k^2 / sum x^2, from
    equal weights. Adam with betas (0.5, 0.999); the rate is halved every 20 epochs. The authors' code runs 20
    epochs; FedLWS reports 100 for its comparison (D-14). swa = True learns lambda first, in half the epochs, averaged
    from the sixth on, and then gamma. BatchNorm looks at the proxy batches themselves; afterwards its running
    statistics, the lambda-weighted mean of the clients', are brought up to date by as many passes over them.
    """

    epochs: int = 20
    lr: float = 0.01
    batch: int = 128
    by: Literal["exp", "quad"] = "exp"
    swa: bool = False
    of = "model"

    def validate(self):
        check(self.epochs >= 0, f"Learned.epochs must not be negative; got {self.epochs}")
        check(self.lr > 0, f"Learned.lr must be above 0; got {self.lr}")
        check(self.batch >= 1, f"Learned.batch must be at least 1; got {self.batch}")

    @property
    def needs(self):
        return frozenset({"proxy"})

    def weights(self, state, round):
        x, x0 = self._start(round)
        if self.swa:
            x = self._fitted(x, lambda x: self._weights(x, x0), self.epochs // 2, round, averaged=True)
            x0 = self._fitted(x0, lambda x0: self._weights(x, x0), self.epochs // 2, round)
        else:
            both = torch.cat([x, x0])
            both = self._fitted(both, lambda b: self._weights(b[:-1], b[-1:]), self.epochs, round)
            x, x0 = both[:-1], both[-1:]
        weights = self._weights(x, x0)
        round.note(gamma=weights.sum()[None])
        return weights, state

    def _fitted(
        self, x: Tensor, weights: Callable[[Tensor], Tensor], epochs: int, round: Round, averaged: bool = False
    ) -> Tensor:
        """x of less proxy loss; the mean over the epochs from the sixth on, if asked and there are as many."""
        assert round.proxy is not None  # checked before anything ran
        batches, number = round.proxy.batches(self.batch), round.cohort.number
        x, adam = x.clone(), Adam(lr=self.lr, beta1=0.5)
        state, rate = adam.init(x), x.new_tensor(self.lr)

        def epoch(noise: int = 0) -> None:
            for part in batches:
                at = x.detach().requires_grad_()
                loss = part.in_training(self.mix(weights(at), round), round.buffers.old, noise)[0]
                adam.update(x, torch.autograd.grad(loss, at)[0], state, rate)

        path, again = [], Replayed(epoch, x.device)
        for i in range(epochs):
            if round.proxy.task.noisy:
                epoch(torch_seed(round.seed, "proxy", number, i))
            else:
                again()
            rate.mul_(0.5 if i % 20 == 19 else 1.0)
            path.append(x.clone())
        return torch.stack(path[5:]).mean(0) if averaged and len(path) > 5 else x

    def _start(self, round: Round) -> tuple[Tensor, Tensor]:
        """x_1..x_K, and x_0."""
        share = round.share
        if self.by == "exp":
            return share.log(), share.new_zeros(1)
        return torch.full_like(share, len(share) ** -0.5), share.new_ones(1)

    def _weights(self, x: Tensor, x0: Tensor) -> Tensor:
        """gamma lambda_k, [K, 1]."""
        if self.by == "exp":
            return (x0.exp() * torch.softmax(x, 0))[:, None]
        return (x0.square() * x.square() / x.square().sum())[:, None]

    def buffer_weights(self, weights, round):
        return weights[:, 0] / weights.sum()  # lambda alone: buffers are never shrunk

    def treat(self, state, buffers, model, round):
        if not buffers or not round.buffers.clients:
            return buffers
        assert round.proxy is not None  # checked before anything ran
        now, batches = round.buffers.settled(buffers), round.proxy.batches(self.batch)
        now = {n: b.clone() for n, b in now.items()}

        def epoch() -> None:
            with torch.no_grad():
                for part in batches:
                    for n, b in part.in_training(model, now, 0)[1].items():
                        now[n].copy_(b)

        again = Replayed(epoch, model.device)
        for _ in range(self.epochs):
            again()
        return now
