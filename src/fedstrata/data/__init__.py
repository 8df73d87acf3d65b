"""Where examples come from."""

from fedstrata.data.datasets import DATASETS, Dataset, dataset
from fedstrata.data.synthetic import Quadratics, quadratics
from fedstrata.data.text import Vocabulary, tokens

__all__ = ["DATASETS", "Dataset", "Quadratics", "Vocabulary", "dataset", "quadratics", "tokens"]
