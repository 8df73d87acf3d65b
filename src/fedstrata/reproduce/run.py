"""Making a table again: what is missing is run, and every run is a line of the results as soon as it ends."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedstrata.data.download import missing as missing_files
from fedstrata.data.sources import SOURCES
from fedstrata.errors import NeedError, check
from fedstrata.experiment import Experiment
from fedstrata.lab.compare import slug
from fedstrata.lab.jobs import Job, Told
from fedstrata.lab.many import run_all
from fedstrata.reproduce.kinds import KINDS
from fedstrata.reproduce.plan import Cell, Reproduction, picked
from fedstrata.reproduce.results import RUNS, append, of_run, results_file, results_of


def reproduce(
    made: Reproduction,
    seeds: int | None = None,
    means: dict[str, Any] | None = None,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    runs: Path | None = None,
    results: Path | None = None,
    jobs: int | None = None,
    told: Told | None = None,
    begin: Callable[[int], None] | None = None,
) -> None:
    """Run what is missing of a table, or of the rows and columns of these names, or with these words in their names.

    `means` are settings such as the device that change no result but for rounding. Run folders go to `runs`, one a
    cell and seed, and are gone on with where one was broken off; lines go to `results`, unless told to the experiment's
    own folder. `begin` is told how many runs there are to make.
    """
    if made.missing is not None and not at_hand(made):
        raise NeedError(f"{made.name} cannot be run: {made.missing}")
    mine, across = picked(made.rows, rows), picked(made.columns, columns)
    cells = [c for c in made.cells if c.row in mine and c.column in across]
    check(bool(cells), f"no cell of {made.name} has such a row and column; its rows are {', '.join(made.rows)}")
    file = results or results_file(made)
    there = {(r.row, r.column, r.seed) for r in results_of(made, file)}
    wanted = [(c, seed) for c in cells for seed in range(seeds or made.seeds)]
    missing = [(c, seed) for c, seed in wanted if (c.row, c.column, seed) not in there]
    missing = list({(c.fingerprint, seed): (c, seed) for c, seed in reversed(missing)}.values())[::-1]  # rows may share
    if begin is not None:
        begin(len(missing))
    if made.kind != "runs":
        for result in KINDS[made.kind](made, missing, means or {}):
            append(result, file)
        return
    _run(made, missing, means or {}, runs or RUNS, file, jobs, told)


def at_hand(made: Reproduction) -> bool:
    """Whether the files of all data sets are there that a table is about."""
    named = {str(c.settings.get("data", "")).partition("(")[0] for c in made.cells}
    return not any(missing_files(SOURCES[name]) for name in named & SOURCES.keys())


def _run(
    made: Reproduction,
    missing: Sequence[tuple[Cell, int]],
    means: dict[str, Any],
    runs: Path,
    file: Path,
    jobs: int | None,
    told: Told | None,
) -> None:
    todo: dict[Path, tuple[Cell, Experiment, Job]] = {}
    for cell, seed in missing:
        exp = replace(cell.experiment(seed), **means)
        folder = runs / made.name / made.scale / slug(cell.column or "all") / slug(cell.row) / f"seed-{seed}"
        todo[folder] = cell, exp, Job(_called(cell, exp), exp, folder)

    def heard(job: Job, line: dict[str, Any] | None) -> None:
        if line is None:
            cell, exp, _ = todo[job.folder]
            append(of_run(made, cell, exp, job.folder), file)
        if told is not None:
            told(job, line)

    run_all([job for _, _, job in todo.values()], jobs, heard)


def _called(cell: Cell, exp: Experiment) -> str:
    return f"{cell.row}, {cell.column}, seed {exp.seed}" if cell.column else f"{cell.row}, seed {exp.seed}"
