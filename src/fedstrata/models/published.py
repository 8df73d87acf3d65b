"""The small networks of federated-learning papers.

Pictures are pooled before the ReLU: it commutes with a maximum to the bit, gradients too, and has a quarter to do then.
"""

from math import prod
from typing import Literal

from torch import nn

from fedstrata.errors import DataError
from fedstrata.models.base import Network, Shape, flat_width, hidden, image


def mlp200(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 200, as in FedAvg and FedLWS."""
    return Network(nn.Sequential(nn.Flatten(), *hidden([prod(shape), 200, 200])), 200, classes)


def har_mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 128 and 64, for the 561 features of UCI-HAR."""
    return Network(nn.Sequential(nn.Flatten(), *hidden([prod(shape), 128, 64])), 64, classes)


def simple_cnn(shape: Shape, classes: int) -> nn.Module:
    """Three convolutions of 3x3 and a hidden layer of 64, as in FedLAW and FedLWS."""
    channels, _, _ = image(shape)
    layers = nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    return Network(layers.extend(hidden([flat_width(layers, shape), 64])), 64, classes)


def layerwise_cnn(shape: Shape, classes: int, init: Literal["torch", "keras"] = "torch") -> nn.Module:
    """Two convolutions of 5x5 and a hidden layer of 512, as in FedLayerWise."""
    channels, _, _ = image(shape)
    layers = nn.Sequential(
        nn.Conv2d(channels, 32, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    network = Network(layers.extend(hidden([flat_width(layers, shape), 512])), 512, classes)
    return network.apply(_as_keras) if init == "keras" else network


def moon_cnn(shape: Shape, classes: int, head: bool = True) -> nn.Module:
    """Two convolutions of 5x5, hidden layers of 120 and 84, and MOON's projection head of 256."""
    channels, _, _ = image(shape)
    layers = nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    layers.extend(hidden([flat_width(layers, shape), 120, 84]))
    if not head:
        return Network(layers, 84, classes)
    return Network(layers.extend([*hidden([84, 84]), nn.Linear(84, 256)]), 256, classes)


def har_cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions of width 9 over time, hidden layers of 1024 and 512, as in PFLlib, for UCI-HAR's signals."""
    if len(shape) != 2:
        raise DataError(f"this model needs signals (channels, length); the examples have shape {shape}")
    layers = nn.Sequential(
        nn.Conv1d(shape[0], 32, 9), nn.MaxPool1d(2), nn.ReLU(),
        nn.Conv1d(32, 64, 9), nn.MaxPool1d(2), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    return Network(layers.extend(hidden([flat_width(layers, shape), 1024, 512])), 512, classes)


def _as_keras(module: nn.Module) -> None:
    """Glorot-uniform weights and zero biases."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
