"""The smallest models: logistic regression, a perceptron, two convolutions."""

from math import prod

from torch import nn

from fedstrata.models.base import Shape, image


def logreg(shape: Shape, classes: int) -> nn.Module:
    """Logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 64."""
    hidden = [nn.Linear(prod(shape), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, classes))


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions of 16 and 32 filters and a linear classifier."""
    channels, height, width = image(shape, 4)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), classes),
    )  # fmt: skip


def cnn_bn(shape: Shape, classes: int) -> nn.Module:
    """`cnn` with batch normalisation after each convolution."""
    channels, height, width = image(shape, 4)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), classes),
    )  # fmt: skip
