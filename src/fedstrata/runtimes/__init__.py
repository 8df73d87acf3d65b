"""Who calls the clients of a round: several engines for the same recipe."""

from fedstrata.runtimes.apart import Apart
from fedstrata.runtimes.choose import Compile, Engine, chosen
from fedstrata.runtimes.collect import collect, updates_at_once
from fedstrata.runtimes.faulty import Faulty
from fedstrata.runtimes.pool import Pool
from fedstrata.runtimes.stacked import Stacked
from fedstrata.runtimes.vault import Vault
from fedstrata.runtimes.visit import Runtime

__all__ = [
    "Apart", "Compile", "Engine", "Faulty", "Pool", "Runtime", "Stacked", "Vault", "chosen", "collect",
    "updates_at_once",
]  # fmt: skip
