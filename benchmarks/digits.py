"""A round in float32, by MKL alone and as we multiply, and in bf16, on this CPU: `python -m benchmarks.digits`.

Four clients with noise as good as pictures or texts; 1,000 examples are scored every round. The ways take turns, and
the first round of each run is left out. A CPU without instructions for bf16 (AVX512_BF16, AMX) loses by it.
"""

import argparse
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

import fedstrata as fs
from fedstrata import products
from fedstrata.models import model as zoo
from fedstrata.precision import Precision
from fedstrata.products import halved_by_mkl

CLIENTS, SCORED, VOCABULARY = 4, 1000, 20_000
WAYS: dict[str, tuple[Precision, bool]] = {
    "float32, MKL": ("float32", False),
    "float32": ("float32", halved_by_mkl()),
    "bf16": ("bf16", halved_by_mkl()),
}
"""Precision, and whether oneDNN is asked for products."""

MODELS: dict[str, tuple[tuple[int, ...], int, fs.Training]] = {
    "mlp200": ((784,), 1280, fs.SGD(lr=0.01, momentum=0.9, batch=64)),
    "layerwise_cnn": ((1, 28, 28), 1280, fs.Adam(lr=0.001, batch=16)),
    "simple_cnn": ((3, 32, 32), 1280, fs.SGD(lr=0.01, momentum=0.9, batch=64)),
    "resnet20": ((3, 32, 32), 256, fs.SGD(lr=0.01, momentum=0.9, batch=64)),
    "vit": ((3, 32, 32), 64, fs.SGD(lr=0.01, momentum=0.9, batch=64)),
    "textcnn": ((64,), 1280, fs.SGD(lr=0.01, momentum=0.9, batch=128)),
}
"""Shape of an example, examples a client, local training."""


def round_seconds(name: str, precision: Precision, rounds: int) -> list[float]:
    """Seconds of each round but the first."""
    shape, size, training = MODELS[name]
    draw = torch.Generator().manual_seed(0)
    total = CLIENTS * size + SCORED
    text = name == "textcnn"
    x = (
        torch.randint(VOCABULARY, (total, *shape), generator=draw)
        if text
        else torch.randn(total, *shape, generator=draw)
    )
    y = torch.randint(10, (total,), generator=draw)
    given: dict[str, Any] = {"vocabulary": VOCABULARY} if text else {}
    rows = list(np.arange(CLIENTS * size).reshape(CLIENTS, size))
    laps = [perf_counter()]
    fs.simulate(
        "fedavg", zoo(name, shape, 10, **given), fs.Clients.split(x[:-SCORED], y[:-SCORED], rows), rounds=rounds + 1,
        training=training, precision=precision, evaluate_train=False, test=(x[-SCORED:], y[-SCORED:]),
        on_round=lambda _: laps.append(perf_counter()),
    )  # fmt: skip
    return np.diff(laps)[1:].tolist()


def main() -> None:
    """Print a line a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    said = parser.parse_args()
    print(f"| round, s | {' | '.join(WAYS)} |\n|---|{'---:|' * len(WAYS)}")
    for name in said.models:
        laps: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(said.repeat):
            for way, (precision, asked) in WAYS.items():
                products.halved_by_mkl = partial(bool, asked)
                laps[way] += round_seconds(name, precision, said.rounds)
        middle = [median(seconds) for seconds in laps.values()]
        print(f"| {name} | " + " | ".join(f"{m:.3f} ({m / middle[1]:.2f})" for m in middle) + " |", flush=True)


if __name__ == "__main__":
    main()
