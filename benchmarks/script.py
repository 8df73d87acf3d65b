"""What the contenders share: their arguments, a clock, and the line of JSON that they print.

A contender is a function run(job) that trains job.rounds rounds, tells job.clock how long each took, and returns the
final parameters. Its script starts itself a second time and watches that process (see measure.py).
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.measure import cpu_seconds, tree, watch
from benchmarks.workloads import WORKLOADS, Workload

ROOT = Path(__file__).parent.parent
INSIDE = "--inside"
Metrics = dict[str, tuple[float, float]]
"""Of each set, mean loss and accuracy."""


@dataclass
class Clock:
    """Seconds of each round, training and evaluation apart, and the processor time of all but the first round."""

    train: list[float] = field(default_factory=list)
    evaluate: list[float] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)
    cpu: list[float] = field(default_factory=list)

    def add(self, train: float, evaluate: float, metrics: Metrics) -> None:
        """A round took this long. The first one warms up and does not count."""
        self.train.append(train)
        self.evaluate.append(evaluate)
        self.metrics = metrics or self.metrics

    def read_cpu(self) -> None:
        """To be called at the end of the first round and of the last."""
        self.cpu.append(cpu_seconds(tree(os.getpid())))


@dataclass(frozen=True)
class Job:
    """What a contender is to do."""

    work: Workload
    rounds: int  # with the first, that warms up
    dtype: str
    threads: int | None  # None: as many as the contender likes best
    options: argparse.Namespace
    clock: Clock = field(default_factory=Clock)

    def lap(self, train: float, evaluate: float, metrics: Metrics) -> None:
        """A round is over."""
        self.clock.add(train, evaluate, metrics)
        if len(self.clock.train) in (1, self.rounds):
            self.clock.read_cpu()


Run = Callable[[Job], Sequence[np.ndarray]]


def main(contender: str, run: Run, options: Callable[[argparse.ArgumentParser], object] = lambda _: None) -> None:
    """The whole script of a contender."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.contenders.{contender}", description=run.__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds, after one that warms up")
    parser.add_argument("--fraction", type=float, default=1.0, help="of every client's examples and every held-out set")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--threads", type=int, help="of the process that trains or evaluates")
    parser.add_argument("--parameters", type=Path, help="where to write the final parameters (.npy)")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    options(parser)
    given = parser.parse_args()
    print(json.dumps(_inside(contender, run, given) if given.inside else _watched(contender)), flush=True)


def line_of(out: str) -> dict | None:
    """The line of a contender among whatever else it printed."""
    lines = [line for line in out.splitlines() if line.startswith('{"contender"')]
    return json.loads(lines[-1]) if lines else None


def environment(*paths: Path) -> dict[str, str]:
    """The variables for a contender: it finds this package, and nobody calls home."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return kept | quiet | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *paths))), "JAX_PLATFORMS": "cpu"}


def _inside(contender: str, run: Run, given: argparse.Namespace) -> dict:
    """Run it here: the facts that are known from inside."""
    job = Job(WORKLOADS[given.workload].part(given.fraction), given.rounds + 1, given.dtype, given.threads, given)
    began = perf_counter()
    parameters = run(job)
    whole, clock = perf_counter() - began, job.clock
    if len(clock.train) != job.rounds:
        raise RuntimeError(f"{contender} was to run {job.rounds} rounds but told of {len(clock.train)}")
    if given.parameters:
        np.save(given.parameters, np.concatenate([np.asarray(p, np.float64).ravel() for p in parameters]))
    rounds = [t + e for t, e in zip(clock.train, clock.evaluate, strict=True)]
    return {
        "contender": contender,
        "workload": given.workload,
        "fraction": given.fraction,
        "dtype": given.dtype,
        "seconds": rounds[1:],
        "train_seconds": clock.train[1:],
        "evaluate_seconds": clock.evaluate[1:],
        "cpu_seconds": (clock.cpu[-1] - clock.cpu[0]) / given.rounds,
        "first_seconds": whole - sum(rounds[1:]),  # data, start and the round that warms up
        "metrics": clock.metrics,
    }


def _watched(contender: str) -> dict:
    """Run this script again and watch it: the facts from inside and outside."""
    command = [sys.executable, "-m", f"benchmarks.contenders.{contender}", *sys.argv[1:], INSIDE]
    paths = [Path(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    seen = watch(command, environment(*paths), Path.cwd(), limit=3600)
    line = line_of(seen.out)
    if line is None:
        sys.exit(f"{contender} ended with code {seen.code} and without a result:\n{seen.err[-3000:]}")
    return line | seen.cost
