"""What a client minimises: one file a method, both halves together."""

from fedstrata.parts.local.adaptive_prox import AdaptiveProx
from fedstrata.parts.local.dc import DC
from fedstrata.parts.local.dyn import Dyn
from fedstrata.parts.local.etf import ETF
from fedstrata.parts.local.intervals import Intervals
from fedstrata.parts.local.moon import Moon
from fedstrata.parts.local.prototypes import Prototypes
from fedstrata.parts.local.prox import PerLayer, Prox
from fedstrata.parts.local.scaffold import Scaffold
from fedstrata.parts.local.selective_prox import SelectiveProx

__all__ = [
    "DC", "ETF", "AdaptiveProx", "Dyn", "Intervals", "Moon", "PerLayer", "Prototypes", "Prox", "Scaffold",
    "SelectiveProx",
]  # fmt: skip
