"""FedProx: hold every client near the global model."""

from dataclasses import dataclass, fields
from typing import final

import torch
from torch import Tensor

from fedstrata.core import Local
from fedstrata.errors import SettingError, check
from fedstrata.layout import Layout
from fedstrata.optim import SGD, Training
from fedstrata.values import Value


@final
@dataclass(frozen=True)
class PerLayer(Value):
    """One number for each layer of the model, in its order."""

    values: tuple[float, ...]


@final
@dataclass(frozen=True)
class Prox(Local):
    """FedProx (Li et al. 2020, Eq. 2): add sum_l mu_l/2 |w_l - w^t_l|^2 to the client's loss.

    plain_sgd = True trains without momentum and weight decay, as the code of FedLAW and FedLWS does here alone (D-12).
    """

    mu: float | PerLayer = 0.01
    plain_sgd: bool = False
    elementwise = True

    def validate(self):
        values = self.mu.values if isinstance(self.mu, PerLayer) else (self.mu,)
        check(all(v >= 0 for v in values), f"Prox.mu must not be negative; got {self.mu}")

    def adapt_training(self, training):
        if not self.plain_sgd:
            return training
        return SGD(**{f.name: getattr(training, f.name) for f in fields(Training)})

    @property
    def pull(self):
        return None if isinstance(self.mu, PerLayer) else self.mu

    def init(self, layout, population):
        _strength(self.mu, layout)  # says so now if it does not fit the model
        return {}

    def correct(self, grad, w, turn):
        if isinstance(self.mu, PerLayer):
            return grad + _strength(self.mu, turn.task.layout) * (w - turn.start)
        return grad.add(w - turn.start, alpha=self.mu)


def _strength(mu: float | PerLayer, layout: Layout) -> Tensor | float:
    """mu, or mu spread over the layers, [P]."""
    if not isinstance(mu, PerLayer):
        return mu
    if len(mu.values) != layout.depth:
        names = ", ".join(layout.layers)
        raise SettingError(f"PerLayer has {len(mu.values)} values but the model has {layout.depth} layers: {names}")
    return layout.spread(torch.tensor(mu.values, dtype=torch.float64, device=layout.device))
