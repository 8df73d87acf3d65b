"""The laboratory: grids of experiments, methods compared over seeds, advice on which to take."""

from fedstrata.lab.advise import Advice, advise
from fedstrata.lab.compare import Comparison, compare
from fedstrata.lab.sweep import Point, expand

__all__ = ["Advice", "Comparison", "Point", "advise", "compare", "expand"]
