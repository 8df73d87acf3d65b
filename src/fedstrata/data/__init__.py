"""Where examples come from."""

from fedstrata.data.datasets import dataset, is_own
from fedstrata.data.examples import Dataset, held_out
from fedstrata.data.own import load_own
from fedstrata.data.public import PUBLIC
from fedstrata.data.synthetic import Quadratics, quadratics
from fedstrata.data.text import Vocabulary, tokens

__all__ = [
    "PUBLIC", "Dataset", "Quadratics", "Vocabulary", "dataset", "held_out", "is_own", "load_own", "quadratics",
    "tokens",
]  # fmt: skip
