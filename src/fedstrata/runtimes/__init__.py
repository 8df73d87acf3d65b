"""Who carries the messages of a round: several transports of the same recipe."""

from fedstrata.runtimes.apart import Apart
from fedstrata.runtimes.simulator import Simulator
from fedstrata.runtimes.vault import Vault
from fedstrata.runtimes.visit import Runtime

__all__ = ["Apart", "Runtime", "Simulator", "Vault"]
