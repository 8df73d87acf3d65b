"""Random crops and flips of images, the same for a client in a round wherever it is trained."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedstrata.errors import DataError, check
from fedstrata.rng import rng
from fedstrata.values import Value


@final
@dataclass(frozen=True)
class Augment(Value):
    """Shift every training image by up to `crop` pixels each way, and mirror half of them, anew in every step.

    What is shifted in is 0, the middle of scaled pixels.
    """

    crop: int = 4
    flip: bool = True

    def validate(self) -> None:
        check(self.crop >= 0, f"Augment.crop must not be negative; got {self.crop}")

    def draw(self, seed: int, round: int, client: int, steps: int, batch: int) -> np.ndarray:
        """Rows and columns to shift by, from 0 to 2 crop, and whether to mirror: [steps, batch, 3]."""
        draw = rng(seed, "augment", round, client)
        shifts = draw.integers(0, 2 * self.crop + 1, (steps, batch, 2))
        return np.concatenate([shifts, draw.integers(0, 2, (steps, batch, 1)) * self.flip], -1)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Images [..., C, H, W] changed as drawn, [..., 3]."""
        if x.dim() != drawn.dim() + 2:
            shape = tuple(x.shape[drawn.dim() - 1 :])
            raise DataError(f"Augment changes images (channels, height, width); the examples have shape {shape}")
        flat, how = x.flatten(0, -4), drawn.flatten(0, -2)
        height, width = x.shape[-2:]
        wide = pad(flat, (self.crop,) * 4)
        rows = how[:, 0, None] + torch.arange(height, device=x.device)  # [n, H]
        columns = how[:, 1, None] + torch.arange(width, device=x.device)
        columns = torch.where(how[:, 2, None] > 0, columns.flip(-1), columns)
        each = torch.arange(len(flat), device=x.device)[:, None, None]
        moved = wide.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]  # [n, H, W, C]
        return moved.permute(0, 3, 1, 2).reshape(x.shape)
