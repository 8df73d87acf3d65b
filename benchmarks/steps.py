"""A local step on a CPU as we take it, against the same by torch's own layers: `python -m benchmarks.steps`.

The text CNN by distinct words, and convolutions that are pooled as they are made. One client's loss and gradients, one
thread; both ways take turns. Words are drawn by Zipf's law, as in languages, and texts end anywhere from a third of
their length on, so that padding is there. Pictures are noise, which leaves more answers above zero than training does.
"""

import argparse
from collections.abc import Callable
from statistics import quantiles
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.memory import kept
from fedstrata.models import answers, model
from fedstrata.pooled import heed_pools, pooling

TEXTS, LENGTH, VOCABULARY = 128, 64, 20_000
PICTURES = {
    ("simple_cnn", 128): (3, 32, 32), ("simple_cnn", 64): (3, 32, 32), ("simple_cnn", 32): (1, 28, 28),
    ("layerwise_cnn", 32): (1, 28, 28), ("moon_cnn", 64): (3, 32, 32), ("cnn", 32): (1, 28, 28),
}  # fmt: skip
"""Shape of an example, by model and batch."""

Step = Callable[[bool], None]
"""Takes one, in our way or in torch's."""


def texts() -> Step:
    """Of the text CNN."""
    draw = np.random.default_rng(0)
    chance = 1 / np.arange(1, VOCABULARY)
    words = 1 + draw.choice(VOCABULARY - 1, (TEXTS, LENGTH), p=chance / chance.sum())
    ends = draw.integers(LENGTH // 3, LENGTH + 1, (TEXTS, 1))
    x = torch.from_numpy(np.where(np.arange(LENGTH) < ends, words, 0))
    network, usual = model("textcnn", (LENGTH,), 4, vocabulary=VOCABULARY), answers.PAYS

    def step(ours: bool) -> None:
        answers.PAYS = usual if ours else 1 << 60
        taken(network, x)

    return step


def pictures(name: str, batch: int, shape: tuple[int, ...]) -> Step:
    """Of this model, with channels last either way."""
    network = heed_pools(model(name, shape, 10))
    for weight in network.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    x = torch.randn(batch, *shape).to(memory_format=torch.channels_last)

    def step(ours: bool) -> None:
        with pooling(ours):
            taken(network, x)

    return step


def taken(network: nn.Module, x: Tensor) -> None:
    """Loss and gradients."""
    loss = nn.functional.cross_entropy(network(x), torch.arange(len(x)) % 4)
    torch.autograd.grad(loss, list(network.parameters()))


def main() -> None:
    """Print a line for each model: both ways, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=31)
    said = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps = {f"textcnn, {TEXTS} texts": texts()}
    steps |= {f"{n}, {b} of {'x'.join(map(str, s))}": pictures(n, b, s) for (n, b), s in PICTURES.items()}
    print("| ms, and quartiles | ours | torch's layers | times as fast |\n|---|---:|---:|---:|")
    with kept():
        for name, step in steps.items():
            laps: dict[bool, list[float]] = {True: [], False: []}
            for i in range(said.repeat + 2):
                for ours in laps:
                    begun = perf_counter()
                    step(ours)
                    if i > 1:  # the first ones compile, and take memory
                        laps[ours].append(1e3 * (perf_counter() - begun))
            (a, ours, b), (c, theirs, d) = (quantiles(v, n=4) for v in laps.values())
            columns = f"{ours:.1f} ({a:.1f} to {b:.1f}) | {theirs:.1f} ({c:.1f} to {d:.1f}) | {theirs / ours:.1f}"
            print(f"| {name} | {columns} |")


if __name__ == "__main__":
    main()
