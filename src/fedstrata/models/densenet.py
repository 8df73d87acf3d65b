"""DenseNet (Huang et al. 2017): every layer sees the outputs of all before it."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedstrata.models.base import Network, Norm, NormName, Shape, image, norm_of

StemName = Literal["cifar", "imagenet"]


def densenet121(
    shape: Shape, classes: int, stem: StemName = "cifar", norm: NormName = "batch", groups: int = 8
) -> nn.Module:
    """Huang et al.'s DenseNet-121, growth 32, blocks of 6, 12, 24 and 16; with a 3x3 stem as in FedLAW and FedLWS."""
    return densely(shape, classes, (6, 12, 24, 16), 32, norm_of(norm, groups), stem)


def densely(
    shape: Shape, classes: int, blocks: Sequence[int], growth: int, norm: Norm, stem: StemName = "cifar"
) -> Network:
    """Blocks of so many layers; between two of them, half the channels and half the image."""
    channels, _, _ = image(shape, 2 ** (len(blocks) - 1) if stem == "cifar" else 2 ** (len(blocks) + 1) - 3)
    width = 2 * growth
    parts = OrderedDict[str, nn.Module](stem=_stem(channels, width, norm, stem))
    for i, layers in enumerate(blocks):
        parts[f"block{i + 1}"] = nn.Sequential(*(Layer(width + j * growth, growth, norm) for j in range(layers)))
        width += layers * growth
        if i + 1 < len(blocks):
            half = nn.Conv2d(width, width // 2, 1, bias=False)
            parts[f"between{i + 1}"] = nn.Sequential(norm(width), nn.ReLU(), half, nn.AvgPool2d(2))
            width //= 2
    parts["mean"] = nn.Sequential(norm(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Network(nn.Sequential(parts), width, classes)


class Layer(nn.Module):
    """A 1x1 and a 3x3 convolution that add `growth` channels to those they see."""

    def __init__(self, before: int, growth: int, norm: Norm):
        super().__init__()
        self.body = nn.Sequential(
            norm(before), nn.ReLU(), nn.Conv2d(before, 4 * growth, 1, bias=False),
            norm(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """[B, before, H, W] -> [B, before + growth, H, W]."""
        return torch.cat([x, self.body(x)], 1)


def _stem(channels: int, width: int, norm: Norm, kind: StemName) -> nn.Sequential:
    if kind == "cifar":
        return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False))
    conv = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    return nn.Sequential(conv, norm(width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
