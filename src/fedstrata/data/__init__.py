"""Where examples come from."""

from fedstrata.data.datasets import DATASETS, Dataset, dataset
from fedstrata.data.synthetic import Quadratics, quadratics

__all__ = ["DATASETS", "Dataset", "Quadratics", "dataset", "quadratics"]
