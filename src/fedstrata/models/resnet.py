"""Residual networks (He et al. 2016), and a wide one, with batch or group normalisation."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fedstrata.models.base import Network, Norm, NormName, Shape, image, norm_of


def resnet20(shape: Shape, classes: int, norm: NormName = "batch", groups: int = 8) -> nn.Module:
    """He et al.'s ResNet for CIFAR: three stages of three blocks, 16 to 64 channels, 1x1 convolutions as shortcuts."""
    return residual(shape, classes, (16, 32, 64), 3, norm_of(norm, groups))


def wrn56_4(shape: Shape, classes: int, norm: NormName = "batch", groups: int = 8) -> nn.Module:
    """ResNet-56 with four times the channels, 64 to 256, nine blocks a stage, as in FedLAW and FedLWS."""
    return residual(shape, classes, (64, 128, 256), 9, norm_of(norm, groups))


def resnet18(shape: Shape, classes: int, norm: NormName = "batch", groups: int = 8) -> nn.Module:
    """He et al.'s ResNet-18, 64 to 512 channels, with FedLWS's stem for Tiny-ImageNet: a 3x3 convolution and a pool."""
    return residual(shape, classes, (64, 128, 256, 512), 2, norm_of(norm, groups), pool=True)


def residual(shape: Shape, classes: int, widths: Sequence[int], blocks: int, norm: Norm, pool: bool = False) -> Network:
    """A 3x3 stem, stages of these widths with so many blocks each, all but the first halving the image, and a mean."""
    channels, _, _ = image(shape)
    stem = [_conv(channels, widths[0], 3), norm(widths[0]), nn.ReLU()]
    stem += [nn.MaxPool2d(3, stride=2, padding=1)] if pool else []
    stages = OrderedDict[str, nn.Module](stem=nn.Sequential(*stem))
    for i, (before, width) in enumerate(pairwise((widths[0], *widths))):
        first = Block(before, width, 2 if i else 1, norm)
        stages[f"stage{i + 1}"] = nn.Sequential(first, *(Block(width, width, 1, norm) for _ in range(blocks - 1)))
    stages["mean"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Network(nn.Sequential(stages), widths[-1], classes)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, before: int, width: int, stride: int, norm: Norm):
        super().__init__()
        self.body = nn.Sequential(
            _conv(before, width, 3, stride), norm(width), nn.ReLU(), _conv(width, width, 3), norm(width)
        )
        same = before == width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(_conv(before, width, 1, stride), norm(width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, before, H, W] -> [B, width, H / stride, W / stride]."""
        return (self.body(x) + self.shortcut(x)).relu()


def _conv(before: int, after: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Without a bias, because a normalisation follows."""
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)
