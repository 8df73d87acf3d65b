"""A local step of the text CNN by distinct words against the same by convolutions: `python -m benchmarks.words`.

One client's loss and gradients, 128 texts of 64 words, one thread; both take turns. Words are drawn by Zipf's law, as
in languages, and texts end anywhere from a third of their length on, so that padding is there.
"""

import argparse
from statistics import quantiles
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from fedstrata.memory import kept
from fedstrata.models import answers, model

TEXTS, LENGTH, VOCABULARY = 128, 64, 20_000
WAYS = {"by words": answers.PAYS, "by convolutions": 1 << 60}
"""From which size on words are used."""


def texts() -> Tensor:
    """[TEXTS, LENGTH]."""
    draw = np.random.default_rng(0)
    chance = 1 / np.arange(1, VOCABULARY)
    words = 1 + draw.choice(VOCABULARY - 1, (TEXTS, LENGTH), p=chance / chance.sum())
    ends = draw.integers(LENGTH // 3, LENGTH + 1, (TEXTS, 1))
    return torch.from_numpy(np.where(np.arange(LENGTH) < ends, words, 0))


def main() -> None:
    """Print both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=31)
    said = parser.parse_args()
    torch.set_num_threads(1)
    x, y, network = texts(), torch.arange(TEXTS) % 4, model("textcnn", (LENGTH,), 4, vocabulary=VOCABULARY)
    laps: dict[str, list[float]] = {way: [] for way in WAYS}
    with kept():
        for i in range(said.repeat + 2):
            for way, answers.PAYS in WAYS.items():
                begun = perf_counter()
                torch.autograd.grad(torch.nn.functional.cross_entropy(network(x), y), list(network.parameters()))
                if i > 1:  # the first ones compile, and take memory
                    laps[way].append(perf_counter() - begun)
    middle = {}
    for way, seconds in laps.items():
        low, middle[way], high = (1e3 * q for q in quantiles(seconds, n=4))
        print(f"{way:16} {middle[way]:5.1f} ms ({low:.1f} to {high:.1f})")
    print(f"{middle['by convolutions'] / middle['by words']:.1f} times as fast; {len(x.unique()):,} distinct words")


if __name__ == "__main__":
    main()
