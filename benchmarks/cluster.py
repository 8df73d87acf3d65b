"""The Ray engine on one machine, with one worker and two, beside the pool of processes.

Each run is a process of its own, and all take turns: what the machine does besides strikes them alike.

python -m benchmarks.cluster                     all of it, ten minutes on two cores
python -m benchmarks.cluster --only B --repeat 1
"""

import argparse
import json
import os
import sys
from datetime import date
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import fedstrata as fs
from benchmarks.contenders.ours import federation, settings
from benchmarks.measure import cpu_seconds, tree, wait_for_quiet, watch
from benchmarks.rivals import machine
from benchmarks.script import ROOT, Job, environment
from benchmarks.tables import number
from benchmarks.workloads import WORKLOADS, Workload

LIMIT = 300
"""Seconds that a run may take."""

DISTURBED = 0.15
"""The share of the cores that others may use while a run is measured, or it is made again, a few times."""

MANY = Workload(
    "many", "100 of 200 clients of 50 CIFAR-shaped images, CNN of 122,570 parameters, SGD",
    "simple_cnn", (3, 32, 32), 200, 10_000, {"test": 4_000},
    cohort_size=100, epochs=1, batch=10, lr=0.01, momentum=0.9, signal=0.5,
)  # fmt: skip
WORK = {"A": WORKLOADS["A"], "B": WORKLOADS["B"].part(0.25), "many": MANY}
ROUNDS = {"A": 10, "B": 3, "many": 3}
"""Timed, after one that warms up."""

WAYS = [(engine, workers) for workers in (1, 2) for engine in ("pool", "ray")]


def main() -> None:
    """The command."""
    given = arguments()
    if given.run:
        print(json.dumps(measured(*json.loads(given.run))))
        return
    names = [n.strip() for n in given.only.split(",")] if given.only else list(WORK)
    runs: dict[str, list[dict[str, Any]]] = {n: [] for n in names}
    facts = {"date": str(date.today())} | machine() | {"ray": version("ray")}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for i in range(given.repeat):
        for name, j in product(names, range(len(WAYS))):
            engine, workers = WAYS[(i + j) % len(WAYS)]
            runs[name].append({"engine": engine, "workers": workers} | apart(name, engine, workers, given))
            print(name, runs[name][-1], flush=True)
        given.out.write_text(json.dumps(facts | {"runs": runs}, indent=1) + "\n")
    show(runs)


def apart(name: str, engine: str, workers: int, given: argparse.Namespace) -> dict[str, Any]:
    """A run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.cluster", "--run", json.dumps([name, engine, workers])]
    paths = [Path(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    wait_for_quiet(given.quiet)
    seen = watch(command, environment(*paths), ROOT, LIMIT)
    for _ in range(given.tries - 1):
        if seen.cost["foreign"] > DISTURBED:
            wait_for_quiet(given.quiet)
            seen = watch(command, environment(*paths), ROOT, LIMIT)
    if seen.code:
        return {"why_not": (seen.err.strip().splitlines() or ["it said nothing"])[-1]}
    return json.loads(seen.out.splitlines()[-1]) | seen.cost if seen.code == 0 else {"why_not": f"{LIMIT} s are over"}


def measured(name: str, engine: str, workers: int) -> dict[str, Any]:
    """Seconds of the first round with the start, of each round after it, evaluation included, and processor time."""
    rounds = ROUNDS[name] + 1
    job = Job(WORK[name], rounds, "float32", None, argparse.Namespace(engine=engine))
    what, how = federation(job), settings(job)
    marks, cpu = [perf_counter()], list[float]()

    def lap(_: dict[str, Any]) -> None:
        marks.append(perf_counter())
        if len(marks) in (2, rounds + 1):
            cpu.append(cpu_seconds(tree(os.getpid())))

    fs.simulate(*what, rounds=rounds, workers=workers, on_round=lap, **how)
    first, *laps = np.diff(marks).tolist()
    spent = (cpu[1] - cpu[0]) / ROUNDS[name]
    return {"first_seconds": first, "seconds": median(laps), "cpu_seconds": spent, "laps": laps}


def show(runs: dict[str, list[dict[str, Any]]]) -> None:
    """A table for the documentation: medians over the repetitions, and the ratio to the pool within each."""
    print("| workload | engine | workers | round, s | quartiles | Ray / pool | CPU s | first round, s | memory, MB |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, found in runs.items():
        for engine, workers in WAYS:
            mine, pool = ([r for r in found if (r["engine"], r["workers"]) == (e, workers)] for e in (engine, "pool"))
            if any("why_not" in r for r in (*mine, *pool)):
                print(f"| {name} | {engine} | {workers} | not measured |")
                continue
            laps = [s for r in mine for s in r["laps"]]
            ratios = [r["seconds"] / p["seconds"] for r, p in zip(mine, pool, strict=True)]
            low, high = (number(float(q)) for q in np.quantile(laps, [0.25, 0.75]))
            cells = [name, engine, str(workers), number(median(laps)), f"{low} to {high}"]
            first, peak = median(r["first_seconds"] for r in mine), max(r["peak_mb"] for r in mine)
            cells += [
                f"{median(ratios):.2f}" if engine == "ray" else "",
                number(median(r["cpu_seconds"] for r in mine)),
            ]
            cells += [number(first), f"{peak:,.0f}"]
            print(f"| {' | '.join(cells)} |")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"{', '.join(WORK)}, separated by commas")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quiet", type=float, default=60, help="seconds to wait for a quiet machine before each run")
    parser.add_argument("--tries", type=int, default=3, help="runs to make until others use little of the machine")
    out = ROOT / "benchmarks" / "results" / "ray.json"
    parser.add_argument("--out", type=Path, default=out, help="where to write the figures")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
