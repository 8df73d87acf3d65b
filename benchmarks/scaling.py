"""How seconds and memory grow with the cohort, the model, the population and what clients remember.

Each point is a process of its own.

python -m benchmarks.scaling                              all of it, about five minutes on two cores
python -m benchmarks.scaling --only population --engine stacked
"""

import argparse
import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import fedstrata as fs
from benchmarks.measure import watch
from benchmarks.rivals import machine
from benchmarks.script import ROOT, environment
from benchmarks.tables import number

POOL = 10_000  # examples, of which every client owns a few: the data do not grow with the clients
LIMIT = 900  # seconds that a point may take


@dataclass(frozen=True)
class Point:
    """A federation to time: a model, clients and how many of them take part."""

    model: str = "logreg"
    shape: tuple[int, ...] = (784,)
    population: int = 1_000
    cohort: int = 100
    each: int = 20  # examples of a client
    engine: str = "auto"
    rounds: int = 5
    method: str = "fedavg"
    memory: float | None = None  # GiB
    remembers: bool = False  # as many rounds as it takes to visit nearly all clients, with checkpoints


CNN = "layerwise_cnn", (1, 28, 28)

AXES: dict[str, dict[str, Point]] = {
    "cohort": {f"{k:,} of 1,000 clients": Point(cohort=k) for k in (10, 30, 100, 300, 1_000)},
    "model": {
        "logistic regression": Point(cohort=10),
        **{f"MLP of width {w:,}": Point(f"mlp {w}", cohort=10) for w in (64, 256, 1_024, 2_048)},
        "simple_cnn": Point("simple_cnn", (3, 32, 32), cohort=10),
        "layerwise_cnn": Point("layerwise_cnn", (1, 28, 28), cohort=10),
        "resnet20": Point("resnet20", (3, 32, 32), cohort=10),
    },
    "memories": {
        "100 of 1,000 clients, SCAFFOLD": Point(*CNN, method="scaffold", remembers=True),
        "the same, memories on disk": Point(*CNN, method="scaffold", remembers=True, memory=1.0),
        "all 1,000 clients, SCAFFOLD": Point(*CNN, cohort=1_000, method="scaffold", remembers=True, memory=1.0),
    },
    "population": {f"100 of {n:,} clients": Point(population=n) for n in (100, 1_000, 10_000, 100_000)},
}


def main() -> None:
    """The command."""
    given = arguments()
    if given.point:
        print(json.dumps(measured(Point(**json.loads(given.point)))))
        return
    wanted = [a.strip() for a in given.only.split(",")] if given.only else list(AXES)
    for axis in wanted:
        if axis not in AXES:
            raise SystemExit(f"there is no axis {axis!r}; there are {', '.join(AXES)}")
    result: dict[str, Any] = {"date": str(date.today())} | machine() | {"axes": {}}
    for axis in wanted:
        result["axes"][axis] = {}
        for label, point in AXES[axis].items():
            found = apart(replace(point, engine=given.engine, rounds=given.rounds))
            result["axes"][axis][label] = found
            says = found.get("why_not") or f"{number(found['seconds'])} s a round, {found['peak_mb']:,.0f} MB"
            print(f"{label}: {says}", flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result, given.markdown)
    print(f"written to {given.out}")


def apart(point: Point) -> dict:
    """A point in a process of its own, so that its peak of memory is its own."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--point", json.dumps(asdict(point))]
    paths = [Path(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    seen = watch(command, environment(*paths), ROOT, LIMIT, every=0.1)
    if seen.code is None:
        return asdict(point) | {"why_not": f"it took longer than {LIMIT} s"}
    if seen.code:
        return asdict(point) | {"why_not": (seen.err.strip().splitlines() or ["it said nothing"])[-1]}
    return asdict(point) | json.loads(seen.out.splitlines()[-1]) | seen.cost


def measured(point: Point) -> dict:
    """Seconds of a round, the start and the first round left out; the model is evaluated once, at the end."""
    began, model = perf_counter(), model_of(point)
    stream = np.random.default_rng(0)
    x, y = stream.standard_normal((POOL, *point.shape), dtype=np.float32), stream.integers(10, size=POOL)
    rows = stream.integers(POOL, size=(point.population, point.each))
    ready, marks = perf_counter(), []
    known = inspect.signature(fs.simulate).parameters
    settings = {"engine": point.engine, "evaluate_train": False, "memory": point.memory}
    rounds = 4 * point.population // point.cohort if point.remembers else point.rounds + 2
    with TemporaryDirectory() as folder:
        fs.simulate(
            getattr(fs.recipes, point.method)(select=fs.parts.Sample(k=point.cohort)),
            model,
            fs.Clients.split(x, y, list(rows)),
            rounds=rounds,  # one of them warms up and one is evaluated
            training=fs.SGD(lr=0.01, momentum=0.0 if point.remembers else 0.9, batch=10),
            test=(x[:1_000], y[:1_000]),
            evaluate_every=rounds,
            on_round=lambda _: marks.append(perf_counter()),
            out=Path(folder) / "run" if point.remembers else None,
            **{n: v for n, v in settings.items() if n in known},
        )
    laps = np.diff(marks)[:-1].tolist()
    parameters = sum(p.numel() for p in model.parameters())
    start = {"data_seconds": ready - began, "first_seconds": marks[0] - ready}
    return {"parameters": parameters, "seconds": median(laps), "each_seconds": laps} | start


def model_of(point: Point) -> nn.Module:
    """A model by its name, or "mlp WIDTH" with two hidden layers."""
    torch.manual_seed(0)
    name, _, width = point.model.partition(" ")
    if not width:
        return fs.models.MODELS[name](point.shape, 10)
    w = int(width)
    return nn.Sequential(nn.Linear(784, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 10))


COLUMNS: dict[str, Callable[[dict], str]] = {
    "parameters": lambda f: f"{f['parameters']:,}",
    "round, s": lambda f: number(f["seconds"]),
    "a client, ms": lambda f: number(1000 * f["seconds"] / f["cohort"]),
    "start, s": lambda f: number(f["first_seconds"]),
    "memory, MB": lambda f: f"{f['peak_mb']:,.0f}",
    "others used": lambda f: f"{f['foreign']:.0%}",
}


def show(result: dict, markdown: bool = False) -> None:
    """Print a table for each axis; the start includes the first round."""
    for axis, points in result["axes"].items():
        cells = {n: ["not measured"] if "why_not" in f else [c(f) for c in COLUMNS.values()] for n, f in points.items()}
        rows = [[n, *c] for n, c in cells.items()]
        if markdown:
            head = [[axis, *COLUMNS], ["---"] + ["---:"] * len(COLUMNS)]
            print("\n".join("| " + " | ".join(r) + " |" for r in (*head, *rows)) + "\n")
            continue
        table = Table(title=axis, title_justify="left")
        for i, head in enumerate(["", *COLUMNS]):
            table.add_column(head, justify="right" if i else "left")
        for row in rows:
            table.add_row(*row)
        Console(width=max(110, Console().width)).print(table)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"{', '.join(AXES)}, separated by commas")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--rounds", type=int, default=5, help="timed at each point")
    out = ROOT / "benchmarks" / "results" / "scaling.json"
    parser.add_argument("--out", type=Path, default=out, help="where to write the figures")
    parser.add_argument("--markdown", action="store_true", help="tables for the documentation")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
