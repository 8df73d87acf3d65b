"""MOON: learn features that resemble the global model's rather than one's own of last time."""

from dataclasses import dataclass
from typing import final

import torch

from fedstrata.core import Local
from fedstrata.errors import check


@final
@dataclass(frozen=True)
class Moon(Local):
    """MOON (Li et al. 2021, Eq. 3): add mu l_con, near the global features, away from one's previous ones.

    l_con = -log( e^{s(z, z_glob)/tau} / (e^{s(z, z_glob)/tau} + e^{s(z, z_prev)/tau}) ),   s the cosine

    z is what the classifier sees: a model with a projection head before its classifier is MOON's own. On a client's
    first turn there is no previous model and the term is 0.
    """

    mu: float = 1.0
    tau: float = 0.5

    def validate(self):
        check(self.mu >= 0, f"Moon.mu must not be negative; got {self.mu}")
        check(self.tau > 0, f"Moon.tau must be above 0; got {self.tau}")

    @property
    def needs(self):
        return frozenset({"features"})

    def enroll(self, task, buffers):
        kept = {f"buffer:{n}": b for n, b in buffers.items()}
        return {"previous": task.layout.zeros(), "seen": task.layout.zeros()[0]} | kept

    def penalty(self, w, turn, batch):
        seen = turn.memory["seen"] > 0
        previous = torch.where(seen, turn.memory["previous"], turn.start)  # any model will do where the term is 0
        buffers = {n: turn.memory[f"buffer:{n}"] for n in turn.buffers}
        z_glob = turn.task.features(turn.start, turn.buffers, batch.x)
        z_prev = turn.task.features(previous, buffers, batch.x)
        pull, push = (_cosine(batch.features, z.detach()) / self.tau for z in (z_glob, z_prev))
        contrast = -torch.log_softmax(torch.stack([pull, push], -1), -1)[..., 0]  # [B]
        return self.mu * torch.where(seen, batch.mean(contrast), 0.0)

    def report(self, w, turn):
        kept = {f"buffer:{n}": b for n, b in turn.trained.items()}
        return {"previous": w, "seen": torch.ones_like(turn.memory["seen"])} | kept, {}


def _cosine(a, b):
    return torch.cosine_similarity(a.flatten(1), b.flatten(1), -1)
