"""MOON: learn features that resemble the global model's rather than one's own of last time."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedstrata.core import Local, Turn
from fedstrata.errors import check
from fedstrata.surgery import Projected, with_head


@final
@dataclass(frozen=True)
class Moon(Local):
    """MOON (Li et al. 2021, Eq. 3): add mu l_con, near the global features, away from one's previous ones.

    l_con = -log( e^{s(z, z_glob)/tau} / (e^{s(z, z_glob)/tau} + sum_j e^{s(z, z_prev_j)/tau}) ),   s the cosine

    z is what the classifier sees. head = 256 puts MOON's projection head of that width before the classifier; without
    it, the model is the one that other methods train too. A client keeps its last `buffer` models; on its first turn
    it has none and the term is 0.
    """

    mu: float = 1.0
    tau: float = 0.5
    buffer: int = 1
    head: int | None = None

    def validate(self):
        check(self.mu >= 0, f"Moon.mu must not be negative; got {self.mu}")
        check(self.tau > 0, f"Moon.tau must be above 0; got {self.tau}")
        check(self.buffer >= 1, f"Moon.buffer must be at least 1; got {self.buffer}")
        check(self.head is None or self.head >= 1, f"Moon.head must be at least 1; got {self.head}")

    @property
    def needs(self):
        return frozenset({"features"})

    def adapt_model(self, model, seed):
        width = self.head
        return model if width is None else with_head(model, seed, lambda old: Projected(old, width), "Moon")

    def enroll(self, task, buffers):
        kept = {f"buffer:{n}": b.expand(self.buffer, *b.shape) for n, b in buffers.items()}
        zeros = task.layout.zeros()
        return {"previous": zeros.expand(self.buffer, -1), "seen": zeros[0]} | kept

    def penalty(self, w, turn, batch):
        z = batch.features
        assert z is not None  # checked before anything ran
        pull = self._likeness(z, turn.task.features(turn.start, turn.buffers, batch.x))
        push = [self._previous(z, turn, batch.x, j) for j in range(self.buffer)]
        contrast = -torch.log_softmax(torch.stack([pull, *push], -1), -1)[..., 0]  # [B]
        return self.mu * batch.mean(contrast)

    def report(self, w, turn):
        def newest(value: Tensor, old: Tensor) -> Tensor:
            return torch.cat([value[None], old[:-1]])

        kept = {n: newest(b, turn.memory[n]) for n, b in ((f"buffer:{n}", b) for n, b in turn.trained.items())}
        seen = (turn.memory["seen"] + 1).clamp(max=self.buffer)
        return {"previous": newest(w, turn.memory["previous"]), "seen": seen} | kept, {}

    def _previous(self, z: Tensor, turn: Turn, x: Tensor, j: int) -> Tensor:
        """s(z, z_prev_j) / tau, [B]; minus infinity, which adds nothing, where the client has no such model."""
        there = turn.memory["seen"] > j
        model = torch.where(there, turn.memory["previous"][j], turn.start)  # any model will do where it does not count
        buffers = {n: turn.memory[f"buffer:{n}"][j] for n in turn.buffers}
        return torch.where(there, self._likeness(z, turn.task.features(model, buffers, x)), -torch.inf)

    def _likeness(self, z: Tensor, other: Tensor) -> Tensor:
        return torch.cosine_similarity(z.flatten(1), other.detach().flatten(1), -1) / self.tau
