"""Which client owns which examples."""

from fedstrata.partition.base import Partition
from fedstrata.partition.describe import describe
from fedstrata.partition.dirichlet import Dirichlet
from fedstrata.partition.iid import IID

__all__ = ["IID", "Dirichlet", "Partition", "describe"]
