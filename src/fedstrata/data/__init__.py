"""Where examples come from."""

from fedstrata.data.datasets import dataset
from fedstrata.data.examples import Dataset, held_out
from fedstrata.data.public import PUBLIC
from fedstrata.data.synthetic import Quadratics, quadratics

__all__ = ["PUBLIC", "Dataset", "Quadratics", "dataset", "held_out", "quadratics"]
