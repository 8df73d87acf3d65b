"""The small reference models, made for the shape of an example and a number of classes."""

from collections.abc import Callable
from math import prod

from torch import nn

from fedstrata.errors import DataError, SettingError, near
from fedstrata.rng import seeded, torch_seed

Shape = tuple[int, ...]


def logreg(shape: Shape, classes: int) -> nn.Module:
    """Logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 64."""
    hidden = [nn.Linear(prod(shape), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, classes))


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions of 16 and 32 filters and a linear classifier."""
    channels, height, width = _image(shape)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), classes),
    )  # fmt: skip


def cnn_bn(shape: Shape, classes: int) -> nn.Module:
    """The same with batch normalisation after each convolution."""
    channels, height, width = _image(shape)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), classes),
    )  # fmt: skip


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {"logreg": logreg, "mlp": mlp, "cnn": cnn, "cnn_bn": cnn_bn}


def model(name: str, shape: Shape, classes: int, seed: int = 0) -> nn.Module:
    """The model of this name, its initial weights drawn from the seed."""
    if name not in MODELS:
        raise SettingError(f"no model is called {name!r}; {near(name, MODELS)}")
    with seeded(torch_seed(seed, "model")):
        return MODELS[name](shape, classes)


def _image(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise DataError(
            f"a convolutional model needs images (channels, height, width); the examples have shape {shape}"
        )
    channels, height, width = shape
    return channels, height, width
