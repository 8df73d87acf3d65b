"""What the models share: features and a classifier, layers that normalise, sentences about shapes that do not fit."""

from collections.abc import Callable
from itertools import pairwise
from math import gcd, prod
from typing import Literal

import torch
from torch import Tensor, nn

from fedstrata.errors import DataError, check

Shape = tuple[int, ...]
"""Of one example."""

NormName = Literal["batch", "group"]
Norm = Callable[[int], nn.Module]
"""Makes a layer that normalises this many channels."""


class Network(nn.Module):
    """Features, [B, width], and a linear classifier of them."""

    def __init__(self, features: nn.Module, width: int, classes: int):
        super().__init__()
        self.features = features
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, [B, C]."""
        return self.classifier(self.features(x))


def norm_of(norm: NormName, groups: int) -> Norm:
    """Batch normalisation, or group normalisation in this many groups, or fewer where the channels demand it."""
    check(groups >= 1, f"groups must be at least 1; got {groups}")
    return nn.BatchNorm2d if norm == "batch" else lambda channels: nn.GroupNorm(gcd(groups, channels), channels)


def hidden(widths: list[int]) -> list[nn.Module]:
    """Linear layers from width to width, each followed by ReLU."""
    return [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]


def image(shape: Shape, smallest: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of images that are large enough."""
    if len(shape) != 3:
        raise DataError(
            f"a convolutional model needs images (channels, height, width); the examples have shape {shape}"
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise DataError(
            f"this model needs images of at least {smallest} x {smallest} pixels; the examples have shape {shape}"
        )
    return channels, height, width


def flat_width(layers: nn.Module, shape: Shape) -> int:
    """How many numbers these convolutions and pools leave of an example."""
    try:
        with torch.no_grad():
            return prod(layers(torch.zeros(1, *shape)).shape[1:])
    except RuntimeError:
        raise DataError(
            f"examples of shape {shape} are too small for this model: its convolutions leave nothing of them"
        ) from None
