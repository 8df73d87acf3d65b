"""Server optimisers, for which the mean update is a pseudo-gradient, and distillation."""

from fedstrata.parts.server.adaptive import Adagrad, Adam, Yogi
from fedstrata.parts.server.distill import Distill
from fedstrata.parts.server.momentum import Momentum, Rate

__all__ = ["Adagrad", "Adam", "Distill", "Momentum", "Rate", "Yogi"]
