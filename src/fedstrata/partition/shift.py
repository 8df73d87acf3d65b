"""Feature shift: the clients' labels mean the same, but their inputs look different."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from math import cos, radians, sin
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from fedstrata.clients import Clients
from fedstrata.errors import DataError, check
from fedstrata.partition.base import Partition
from fedstrata.partition.iid import IID
from fedstrata.rng import rng


@dataclass(frozen=True)
class Shifted(Partition):
    """A base partition says who owns what; then the features of each client change in a way of its own."""

    base: Partition = field(default_factory=IID)

    @abstractmethod
    def shift(self, x: Tensor, client: int, seed: int) -> Tensor:
        """A client's features, changed; it depends on nothing else."""

    def split(self, x: Any, y: Any, seed: int = 0, owner: Any = None) -> Clients:
        clients = self.base.split(x, y, seed, owner)
        shifted = clients.x.clone()
        for k, rows in enumerate(clients.rows):
            if len(rows):
                index = torch.from_numpy(rows).to(shifted.device)
                shifted[index] = self.shift(shifted[index], k, seed)
        return replace(clients, x=shifted)


@final
@dataclass(frozen=True)
class Rotated(Shifted):
    """Client k's images are turned by angles[k mod len], in degrees, counter-clockwise (IFCA, Ghosh et al. 2020).

    Right angles are exact; others interpolate, and repeat the border of the image in its corners.
    """

    angles: tuple[float, ...] = (0.0, 90.0, 180.0, 270.0)

    def validate(self):
        check(len(self.angles) >= 1, "Rotated.angles needs an angle at least")

    def shift(self, x, client, seed):
        if x.dim() not in (3, 4):
            raise DataError(f"Rotated needs images, [n, H, W] or [n, C, H, W]; got {list(x.shape)}")
        return rotated(x, self.angles[client % len(self.angles)])


@final
@dataclass(frozen=True)
class Noisy(Shifted):
    """Client k's features get Gaussian noise of deviation levels[k mod len] (Li et al. 2022)."""

    levels: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3)

    def validate(self):
        check(len(self.levels) >= 1, "Noisy.levels needs a level at least")
        check(min(self.levels) >= 0, f"Noisy.levels must not be negative; got {min(self.levels)}")

    def shift(self, x, client, seed):
        if not x.is_floating_point():
            raise DataError(f"Noisy needs floating-point features; got {x.dtype}. Convert them first")
        noise = torch.from_numpy(rng(seed, "noise", client=client).standard_normal(x.shape))
        return x + self.levels[client % len(self.levels)] * noise.to(x)


def rotated(images: Tensor, angle: float) -> Tensor:
    """Images turned about their centre, in the same frame."""
    height, width = images.shape[-2:]
    turns, rest = divmod(angle % 360, 90)
    if rest == 0 and (turns % 2 == 0 or height == width):
        return images.rot90(int(turns), (-2, -1))
    if not images.is_floating_point():
        raise DataError(f"turning images by {angle:g} degrees needs floating-point pixels; got {images.dtype}")
    c, s = cos(radians(angle)), sin(radians(angle))
    theta = images.new_tensor([[[c, -s * height / width, 0], [s * width / height, c, 0]]])
    stack = images.reshape(1, -1, height, width)  # one turn for all
    grid = affine_grid(theta, list(stack.shape), align_corners=False)
    return grid_sample(stack, grid, padding_mode="border", align_corners=False).reshape(images.shape)
