"""The algorithms' pieces, one file each, both halves together."""

from fedstrata.parts.local import AdaptiveProx, Dyn, Moon, PerLayer, Prox, Scaffold, SelectiveProx
from fedstrata.parts.select import Calmest, Everyone, Sample
from fedstrata.parts.shrink import LWS, FixedShrink
from fedstrata.parts.weigh import Angle, BySize, Calm, Equal

__all__ = [
    "LWS", "AdaptiveProx", "Angle", "BySize", "Calm", "Calmest", "Dyn", "Equal", "Everyone", "FixedShrink", "Moon",
    "PerLayer", "Prox", "Sample", "Scaffold", "SelectiveProx",
]  # fmt: skip
