"""Data that the server holds itself."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedstrata.layout import Arrays
from fedstrata.task import Batch, Loss, Task, buffers_of


@dataclass(frozen=True)
class Proxy:
    """A little data held by the server, for the methods that need it."""

    task: Task
    batch: Batch
    buffers: Arrays

    @classmethod
    def of(cls, model: nn.Module, x: Tensor, y: Tensor, loss: str | Loss = "cross_entropy") -> "Proxy":
        """Data for a model of this kind."""
        return cls(Task.of(model, loss), Batch(x, y), buffers_of(model))

    def batches(self, size: int) -> "list[Proxy]":
        """The same data in pieces of this size."""
        pieces = zip(self.batch.x.split(size), self.batch.y.split(size), strict=True)
        return [replace(self, batch=Batch(x, y)) for x, y in pieces]

    def outputs(self, w: Tensor, buffers: Arrays | None = None) -> Tensor:
        """What a model puts out, [P] -> [B, ...]."""
        return self.task.forward(w, self.buffers if buffers is None else buffers, self.batch.x).outputs

    def loss(self, w: Tensor, buffers: Arrays | None = None) -> Tensor:
        """Mean loss of a model, [P] -> []."""
        return self.batch.mean(self.task.losses(self.outputs(w, buffers), self.batch.y))

    def in_training(self, w: Tensor, buffers: Arrays, noise: int) -> tuple[Tensor, Arrays]:
        """(mean loss, buffers after the pass) of a model in training mode; dropout draws from `noise`."""
        draws = torch.tensor(noise, device=w.device) if self.task.noisy else None
        seen = self.task.forward(w, buffers, self.batch.x, "train", noise=draws)
        return self.batch.mean(self.task.losses(seen.outputs, self.batch.y)), seen.buffers
