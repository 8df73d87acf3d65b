"""Runs that go on together on a GPU against the same runs one after another: `python -m benchmarks.company`.

FedAvg with several seeds, 10 clients of 600 examples, noise as good as pictures. Both ways are told in seconds a round
and run, after rounds that capture and compile; evaluation is left out. On a CPU it shows that both work, no more.
"""

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedstrata as fs
from fedstrata.models import model as zoo
from fedstrata.precision import multiplying
from fedstrata.runtimes import together

CLIENTS, EXAMPLES = 10, 600
MODELS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "logreg": ((784,), {"batch": 20}),
    "mlp": ((561,), {"batch": 32}),
    "layerwise_cnn": ((1, 28, 28), {"batch": 16}),
    "simple_cnn": ((3, 32, 32), {"batch": 64}),
    "resnet20": ((3, 32, 32), {"batch": 64}),
}
"""Shape of an example and local training: workload A's, UCI-HAR's, seed 003's, seed 002's."""


def run(name: str, seed: int, said: argparse.Namespace) -> list[float]:
    """Seconds of each round that were spent on this run."""
    shape, training = MODELS[name]
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * EXAMPLES, *shape, generator=draw)
    y = torch.randint(10, (len(x),), generator=draw)
    rows = list(np.random.default_rng(seed).permutation(len(x)).reshape(CLIENTS, EXAMPLES))
    made = fs.simulate(
        "fedavg", zoo(name, shape, 10, seed), fs.Clients.split(x, y, rows), rounds=said.rounds, seed=seed,
        device=said.device, engine="stacked", training=fs.SGD(lr=0.01, momentum=0.9, **training), compile=said.compile,
        precision=said.precision, evaluate_train=False, evaluate_every=said.rounds, test=(x[:1], y[:1]),
    )  # fmt: skip
    return [r["seconds"] for r in made.rounds]


def median(seconds: list[float]) -> float:
    """Of the second half of the rounds: the first ones capture and compile."""
    return statistics.median(seconds[len(seconds) // 2 :])


def measure(name: str, said: argparse.Namespace) -> dict[str, Any]:
    """Seconds a round of one run, alone and in companies of several sizes."""
    found: dict[str, Any] = {"model": name, "alone": median(run(name, 0, said)), "together": {}}
    for count in said.runs:
        with multiplying(said.precision):
            made = together([partial(run, name, seed, said) for seed in range(count)])
        failed = next((e for e in made if isinstance(e, BaseException)), None)
        if failed is not None:
            found["together"][count] = f"{type(failed).__name__}: {str(failed).splitlines()[0]}"
            continue
        found["together"][count] = statistics.median(median(s) for s in made if not isinstance(s, BaseException))
    return found


def main() -> None:
    """Measure, print a line a model as it comes, keep the numbers."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--models", default=",".join(MODELS))
    ask.add_argument("--runs", type=lambda t: [int(n) for n in t.split(",")], default=[2, 5, 10, 20])
    ask.add_argument("--rounds", type=int, default=12)
    ask.add_argument("--device", default="cuda")
    ask.add_argument("--precision", default="tf32")
    ask.add_argument("--compile", default="never")
    ask.add_argument("--out", type=Path)
    said = ask.parse_args()
    results = []
    for name in said.models.split(","):
        results.append(found := measure(name, said))
        gains = {n: f"{found['alone'] / s:.2f}" if isinstance(s, float) else s for n, s in found["together"].items()}
        sys.stdout.write(f"{name}: alone {found['alone']:.4f} s a round; times faster together: {gains}\n")
        sys.stdout.flush()
        if said.out is not None:
            settings = {n: v for n, v in vars(said).items() if n != "out"}
            said.out.write_text(json.dumps({"settings": settings, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
