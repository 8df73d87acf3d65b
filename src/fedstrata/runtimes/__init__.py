"""Who calls the clients of a round: several engines for the same recipe."""

from fedstrata.runtimes.apart import Apart
from fedstrata.runtimes.choose import Compile, Engine, chosen
from fedstrata.runtimes.collect import collect, updates_at_once
from fedstrata.runtimes.company import clock, shared, together
from fedstrata.runtimes.faulty import Faulty
from fedstrata.runtimes.pool import Pool
from fedstrata.runtimes.ray import Ray
from fedstrata.runtimes.stacked import Stacked, activations, clients_at_once
from fedstrata.runtimes.vault import Vault, in_memory
from fedstrata.runtimes.visit import Runtime

__all__ = [
    "Apart", "Compile", "Engine", "Faulty", "Pool", "Ray", "Runtime", "Stacked", "Vault", "activations", "chosen",
    "clients_at_once", "clock", "collect", "in_memory", "shared", "together", "updates_at_once",
]  # fmt: skip
