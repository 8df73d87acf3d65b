"""CCVR: train the classifier once more, on features drawn from what all clients' features look like."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fedstrata.core import Finish
from fedstrata.errors import check
from fedstrata.layout import Arrays
from fedstrata.task import Task


@final
@dataclass(frozen=True)
class Calibrate(Finish):
    """CCVR (Luo et al. 2021): fit a Gaussian to the features of each class, pooled over all clients, at the last model;
    draw `samples` virtual features of every class from it; retrain the classifier alone on those.

    Clients send the number, the sum and the products of their features of each class.
    """

    samples: int = 100
    epochs: int = 10
    lr: float = 0.01
    batch: int = 128

    def validate(self):
        for name in ("samples", "epochs", "batch"):
            check(getattr(self, name) >= 1, f"Calibrate.{name} must be at least 1; got {getattr(self, name)}")
        check(self.lr > 0, f"Calibrate.lr must be above 0; got {self.lr}")

    @property
    def needs(self):
        return frozenset({"features", "labels"})

    @property
    def private(self):
        return frozenset({"labels"})

    @property
    def asks(self):
        return frozenset({"class_moments"})

    def finish(self, model, buffers, stats, task, rng):
        pooled = torch.tensordot(stats["examples"].double(), stats["class_moments"], 1)  # [C, 1 + d + d * d]
        z, y = self._draw(pooled, rng)
        return self._trained(model, buffers, task, z.to(model.device, model.dtype), y.to(model.device), rng)

    def _draw(self, pooled: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Virtual features and their classes; a class that nobody has gives none."""
        found = []
        for c, moments in enumerate(pooled):
            if moments[0] < 0.5:
                continue
            mean, spread = gaussian(moments)
            noise = torch.from_numpy(rng.standard_normal((self.samples, len(mean)))).to(mean.device)
            found.append((mean + noise @ spread, torch.full((self.samples,), c)))
        return torch.cat([z for z, _ in found]), torch.cat([y for _, y in found])

    def _trained(
        self, model: Tensor, buffers: Arrays, task: Task, z: Tensor, y: Tensor, rng: np.random.Generator
    ) -> Tensor:
        """The model with its classifier trained on these features; what it shares with other layers stays."""
        named, prefix = task.layout.unflatten(model), f"{task.classifier}."
        owners = [*((n, n) for n, _ in task.layout.tensors), *task.layout.aliases]
        elsewhere = {first for n, first in owners if not n.startswith(prefix)}
        inside = {n: first for n, first in owners if n.startswith(prefix)}
        mine = {n: named[n].detach().clone().requires_grad_() for n in inside.values() if n not in elsewhere}
        if not mine:
            return model
        trained = named | mine
        given = {n: t for n, t in (task.frozen | buffers).items() if n.startswith(prefix)}
        given = {n.removeprefix(prefix): t for n, t in (given | {n: trained[f] for n, f in inside.items()}).items()}
        head = task.eval_mode.get_submodule(str(task.classifier))
        sgd = torch.optim.SGD(mine.values(), self.lr, momentum=0.9)
        for _ in range(self.epochs):
            for rows in torch.from_numpy(rng.permutation(len(z))).to(z.device).split(self.batch):
                sgd.zero_grad()
                task.losses(functional_call(head, given, (z[rows],)), y[rows]).mean().backward()
                sgd.step()
        return task.layout.flatten(trained)


def gaussian(moments: Tensor) -> tuple[Tensor, Tensor]:
    """(mean [d], symmetric root of the covariance [d, d]) from the number, the sum and the products of features."""
    d = int((len(moments) - 1) ** 0.5)
    n, mean = moments[0], moments[1 : 1 + d] / moments[0]
    products = moments[1 + d :].view(d, d)
    covariance = (products - n * torch.outer(mean, mean)) / (n - 1).clamp_min(1)
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    return mean, vectors * values.clamp_min(0).sqrt() @ vectors.T
