"""Server optimisers: the mean update is a pseudo-gradient."""

from fedstrata.parts.server.adaptive import Adagrad, Adam, Yogi
from fedstrata.parts.server.momentum import Momentum, Rate

__all__ = ["Adagrad", "Adam", "Momentum", "Rate", "Yogi"]
