"""Which client owns which examples."""

from fedstrata.partition.base import Dealt, Partition
from fedstrata.partition.describe import describe
from fedstrata.partition.dirichlet import Dirichlet
from fedstrata.partition.dirichlet_equal import DirichletEqual
from fedstrata.partition.holders import Holders
from fedstrata.partition.iid import IID
from fedstrata.partition.mix import IIDMix
from fedstrata.partition.owner import ByOwner
from fedstrata.partition.quantity import Quantity
from fedstrata.partition.shards import Shards
from fedstrata.partition.shift import Noisy, Rotated

__all__ = [
    "IID", "ByOwner", "Dealt", "Dirichlet", "DirichletEqual", "Holders", "IIDMix", "Noisy", "Partition", "Quantity",
    "Rotated", "Shards", "describe",
]  # fmt: skip
