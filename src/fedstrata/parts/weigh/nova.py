"""FedNova: clients that took more steps count no more for it."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedstrata.core import Weigh
from fedstrata.errors import NeedError, check


@final
@dataclass(frozen=True)
class Nova(Weigh):
    """FedNova (Wang et al. 2020, Eq. 8): w' = w + tau_eff sum_k p_k (w_k - w) / a_k, tau_eff = sum_k p_k a_k.

    a_k is the length of the client's T_k steps: T for plain SGD, longer with momentum, shorter with a proximal term.
    With a proximal term tau_eff = sum_k p_k T_k. momentum = None takes that of the local training.
    """

    momentum: float | None = None
    mu: float = 0.0

    def validate(self):
        check(self.momentum is None or 0 <= self.momentum < 1, f"Nova.momentum must be in [0, 1); got {self.momentum}")
        check(self.mu >= 0, f"Nova.mu must not be negative; got {self.mu}")

    @property
    def needs(self):
        return frozenset({"steps"})

    def weights(self, state, round):
        if self.mu and round.lr is None:
            raise NeedError("Nova with mu needs the clients' learning rate: give lr")
        momentum = self.momentum if self.momentum is not None else getattr(round.training, "momentum", 0.0)
        t, p = round.cohort.stats["steps"].double(), round.share
        a = effective_steps(t, momentum, (round.lr or 0.0) * self.mu)
        tau = (p * (t if self.mu else a)).sum()
        round.note(effective_steps=a)
        return torch.where(a > 0, tau * p / a.clamp_min(1e-300), 0.0)[:, None], state

    def buffer_weights(self, weights, round):
        return round.share  # its weights are of steps and need not sum to 1


def effective_steps(t: Tensor, momentum: float = 0.0, lr_mu: float = 0.0) -> Tensor:
    """|a_k|_1 of T steps, [K]: v <- momentum v + 1, a <- (1 - lr mu) a + v, T times (D-19)."""
    if not momentum and not lr_mu:
        return t
    if not lr_mu:
        return (t - momentum * (1 - momentum**t) / (1 - momentum)) / (1 - momentum)
    if not momentum:
        return (1 - (1 - lr_mu) ** t) / lr_mu
    a, v = torch.zeros_like(t), torch.zeros_like(t)
    for step in range(int(t.max())):
        more = step < t
        v = torch.where(more, momentum * v + 1, v)
        a = torch.where(more, (1 - lr_mu) * a + v, a)
    return a
