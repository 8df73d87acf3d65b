"""How much each client counts, in the whole model or in each layer."""

from fedstrata.parts.weigh.angle import Angle
from fedstrata.parts.weigh.calm import Calm
from fedstrata.parts.weigh.dawa import Dawa
from fedstrata.parts.weigh.disco import Disco
from fedstrata.parts.weigh.fair import AFL, FairFed, Q
from fedstrata.parts.weigh.folb import FOLB
from fedstrata.parts.weigh.greedy import FedGAReconstruction
from fedstrata.parts.weigh.learned import Learned
from fedstrata.parts.weigh.nova import Nova
from fedstrata.parts.weigh.size import BySize, Equal

__all__ = [
    "AFL", "FOLB", "Angle", "BySize", "Calm", "Dawa", "Disco", "Equal", "FairFed", "FedGAReconstruction", "Learned",
    "Nova", "Q",
]  # fmt: skip
