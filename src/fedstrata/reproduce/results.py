"""The runs behind a table as lines of JSON: curves and where they were made. Tables and figures need no more."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedstrata.errors import DataError
from fedstrata.experiment import Experiment
from fedstrata.record import read_rounds
from fedstrata.reproduce.extract import extracted
from fedstrata.reproduce.plan import Cell, Reproduction
from fedstrata.threads import cores
from fedstrata.version import __version__

FILE = "results.jsonl"

RUNS = Path("runs") / "reproduce"
"""The folder of the runs unless told."""


@dataclass(frozen=True)
class Result:
    """One run of a cell."""

    row: str
    column: str
    seed: int
    scale: str
    fingerprint: str  # of the cell's experiment: results of another one do not count
    rounds: int
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)  # accuracies by set, and "loss"
    values: Mapping[str, Any] = field(default_factory=dict)  # what else was measured
    made: Mapping[str, Any] = field(default_factory=dict)  # on what, by which versions, in how many seconds


def results_file(made: Reproduction) -> Path:
    """Where results are kept unless told: beside the table, but those of the quick scale with the runs."""
    return (made.folder if made.scale == "full" else RUNS / made.name / made.scale) / FILE


def results_of(made: Reproduction, file: Path | None = None) -> list[Result]:
    """The runs there are of its cells as they are today, the last one of each seed; others are left alone.

    Tables may share cells: a run that was made for another one counts, unless something is taken from its notes.
    At the quick scale nothing counts but what the file says: what was made elsewhere may not stand in for a check.
    """
    file = file or results_file(made)
    shared = made.kind == "runs" and not made.extract
    files = [*made.folder.parent.glob(f"*/{FILE}"), *file.parent.glob("*.jsonl")] if shared else [results_file(made)]
    files = sorted(files) if made.scale == "full" else []
    lines = (r for path in [*files, file] for r in _lines(path) if r.scale == made.scale)
    own = {(r.fingerprint, r.seed): r for r in lines}
    seeds = sorted({seed for _, seed in own})
    found = ((c, own.get((c.fingerprint, seed))) for c in made.cells for seed in seeds)
    return [replace(r, row=c.row, column=c.column) for c, r in found if r is not None]


def _lines(file: Path) -> Iterable[Result]:
    if not file.exists():
        return
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            yield Result(**json.loads(line))
        except (ValueError, TypeError) as e:
            raise DataError(f"{file}, line {number} is no result of a run: {e}") from None


def append(result: Result, file: Path) -> None:
    """One more line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as f:
        f.write(json.dumps(asdict(result), separators=(",", ":")) + "\n")


def of_run(made: Reproduction, cell: Cell, exp: Experiment, folder: Path) -> Result:
    """What a finished run folder says."""
    rounds = [r for r in read_rounds(folder) if not r.get("finish")]
    sets = [s for s in ("test", "val", "train") if any(s in r for r in rounds)]
    curves = {s: [round(r[s]["accuracy"], 5) for r in rounds if s in r] for s in sets}
    curves |= {"loss": [round(r["test"]["loss"], 5) for r in rounds if "test" in r]} if "test" in sets else {}
    values = extracted(folder, made.extract)
    told = environment(exp) | {"seconds": round(sum(r["seconds"] for r in rounds), 1)}
    return Result(cell.row, cell.column, exp.seed, made.scale, cell.fingerprint, exp.rounds, curves, values, told)


def environment(exp: Experiment | None = None) -> dict[str, Any]:
    """On what a run was made, and by which versions."""
    gpu = exp is not None and exp.device.startswith("cuda")
    count = f"{cores()} cores" if cores() > 1 else "one core"
    on = torch.cuda.get_device_name() if gpu else f"{count} of {platform.machine()}"
    precision = {"precision": exp.precision} if exp is not None and (gpu or exp.precision == "bf16") else {}
    return {"on": on, **precision, "torch": torch.__version__, "fedstrata": __version__}
