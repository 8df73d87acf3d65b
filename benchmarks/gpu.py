"""A federation on one GPU against one client after another, and against one model on the same examples.

    python -m benchmarks.gpu [--models simple_cnn,...] [--rounds 5] [--precision float32] [--out FILE]

20 clients, 2,500 CIFAR-shaped images each, batches of 64, SGD with momentum; logistic regression is workload A. All
contenders train on the same number of examples with the data on the device; evaluation is left out. Medians of rounds,
after one that warms up. Compiling is timed apart: it is what the first round takes more than the others.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedstrata as fs
from fedstrata.models import model as zoo

CLIENTS, BATCH = 20, 64
MODELS = ("logreg", "simple_cnn", "resnet20(norm='group')", "resnet20")
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}


def data(name: str) -> tuple[Tensor, Tensor, list[np.ndarray]]:
    """Examples, labels and the rows of every client; noise is as good as pictures for timing."""
    draw = np.random.default_rng(0)
    if name == "logreg":
        sizes = np.maximum(20, (draw.dirichlet(np.full(CLIENTS, 4.0)) * 192 * CLIENTS).astype(int))
        shape: tuple[int, ...] = (784,)
    else:
        sizes, shape = np.full(CLIENTS, 2500), (3, 32, 32)
    ends = np.cumsum(sizes)
    rows = [np.arange(e - n, e) for e, n in zip(ends, sizes, strict=True)]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(int(ends[-1]), *shape, generator=generator)
    return x, torch.randint(10, (len(x),), generator=generator), rows


def made(name: str, x: Tensor) -> nn.Module:
    """The model of this name for these examples."""
    return zoo(name, tuple(x.shape[1:]), 10, 0)


def training(name: str) -> dict[str, Any]:
    """Batch size and local epochs."""
    return {"batch": 20, "epochs": 3} if name == "logreg" else {"batch": BATCH, "epochs": 1}


def ours(name: str, rounds: int, **how: Any) -> list[float]:
    """Seconds of each round."""
    x, y, rows = data(name)
    run = fs.simulate(
        "fedavg", made(name, x), fs.Clients.split(x, y, rows), rounds=rounds, device="cuda", engine="stacked",
        training=fs.SGD(**SGD, **training(name)), evaluate_train=False, evaluate_every=rounds, test=(x[:1], y[:1]),
        **how,
    )  # fmt: skip
    return [r["seconds"] for r in run.rounds]


def timed(one_round: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of each round of something else."""
    seconds = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        one_round()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds


def batches(rows: Tensor, size: int, epochs: int) -> Iterator[Tensor]:
    """Shuffled on the device."""
    for _ in range(epochs):
        yield from rows[torch.randperm(len(rows), device=rows.device)].split(size)


def one_after_another(name: str, rounds: int) -> list[float]:
    """The usual loop: a client's model, torch's optimiser, batches gathered on the device, a flat average."""
    x, y, rows = data(name)
    net, start = made(name, x).cuda(), made(name, x).cuda()
    x, y, owned = x.cuda(), y.cuda(), [torch.from_numpy(r).cuda() for r in rows]
    how = training(name)

    def one_round() -> None:
        total = [torch.zeros_like(p) for p in start.parameters()]
        for mine in owned:
            net.load_state_dict(start.state_dict())
            optimizer = torch.optim.SGD(net.parameters(), **SGD)
            for b in batches(mine, how["batch"], how["epochs"]):
                optimizer.zero_grad()
                cross_entropy(net(x[b]), y[b]).backward()
                optimizer.step()
            torch._foreach_add_(total, [p.detach() for p in net.parameters()], alpha=len(mine) / len(x))
        for p, t in zip(start.parameters(), total, strict=True):
            p.data.copy_(t)

    return timed(one_round, rounds)


def centralised(name: str, rounds: int, compiled: bool) -> list[float]:
    """One model on all examples, in batches as large as the clients' together."""
    x, y, _ = data(name)
    net = made(name, x).cuda()
    x, y, how = x.cuda(), y.cuda(), training(name)
    optimizer = torch.optim.SGD(net.parameters(), **SGD, fused=True)
    forward = torch.compile(net) if compiled else net
    every = torch.arange(len(x), device="cuda")

    def one_round() -> None:
        for b in batches(every, how["batch"] * CLIENTS, how["epochs"]):
            optimizer.zero_grad()
            cross_entropy(forward(x[b]), y[b]).backward()
            optimizer.step()

    return timed(one_round, rounds)


def contenders(name: str, precision: str) -> dict[str, Callable[[int], list[float]]]:
    """All ways to train it."""
    how: dict[str, Any] = {"precision": precision}
    return {
        "one after another": lambda r: one_after_another(name, r),
        "stacked, captured": lambda r: ours(name, r, compile="never", **how),
        "stacked, compiled": lambda r: ours(name, r, compile="always", **how),
        "centralised": lambda r: centralised(name, r, False),
        "centralised, compiled": lambda r: centralised(name, r, True),
    }


def main() -> None:
    """Print a line a contender, and write them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=";".join(MODELS), help="separated by semicolons")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32", "bf16"])
    parser.add_argument("--only", default="", help="contenders whose name has this")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = given.precision != "float32"
    torch.backends.cudnn.benchmark = True  # as our engine does: the others shall have it too
    found = []
    for name in given.models.split(";"):
        for called, run in contenders(name, given.precision).items():
            if given.only not in called:
                continue
            try:
                first, *rest = run(given.rounds + 1)
            except Exception as e:  # the others are still worth knowing
                sys.stdout.write(f"{name:24} {called:22} failed: {type(e).__name__}: {e}\n")
                continue
            line = {"model": name, "way": called, "precision": given.precision, "seconds": statistics.median(rest),
                    "fastest": min(rest), "slowest": max(rest), "first": first}  # fmt: skip
            found.append(line)
            sys.stdout.write(f"{name:24} {called:22} {line['seconds']:.4f} s a round, first {first:.1f}\n")
            sys.stdout.flush()
            if given.out:
                given.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "lines": found}, indent=2))


if __name__ == "__main__":
    main()
