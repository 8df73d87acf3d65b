"""The algorithms' pieces, one file each, both halves together."""

from fedstrata.parts.local import DC, AdaptiveProx, Dyn, Moon, PerLayer, Prox, Scaffold, SelectiveProx
from fedstrata.parts.select import Calmest, Everyone, Sample
from fedstrata.parts.server import Adagrad, Adam, Momentum, Rate, Yogi
from fedstrata.parts.shrink import AWD, LWS, AdaDecay, FixedShrink
from fedstrata.parts.weigh import (
    AFL,
    FOLB,
    Angle,
    BySize,
    Calm,
    Dawa,
    Disco,
    Equal,
    FairFed,
    FedGAReconstruction,
    Learned,
    Nova,
    Q,
)  # fmt: skip

__all__ = [
    "AFL",
    "AWD",
    "DC",
    "FOLB",
    "LWS",
    "AdaDecay",
    "Adagrad",
    "Adam",
    "AdaptiveProx",
    "Angle",
    "BySize",
    "Calm",
    "Calmest",
    "Dawa",
    "Disco",
    "Dyn",
    "Equal",
    "Everyone",
    "FairFed",
    "FedGAReconstruction",
    "FixedShrink",
    "Learned",
    "Momentum",
    "Moon",
    "Nova",
    "PerLayer",
    "Prox",
    "Q",
    "Rate",
    "Sample",
    "Scaffold",
    "SelectiveProx",
    "Yogi",
]  # fmt: skip
