"""From folders to runs: what is read, which runs differ in their seed alone, what each group is called."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.core import Part, Recipe
from fedstrata.errors import DataError
from fedstrata.recipes import DEFAULTS, METHODS
from fedstrata.record import read_notes, read_recipe, read_rounds

COMPARISON = "compare.json"


@dataclass(frozen=True, eq=False)
class RunFolder:
    """What one run folder says."""

    path: Path
    recipe: Recipe
    settings: dict[str, Any]
    rounds: list[dict[str, Any]]
    environment: dict[str, Any]

    @property
    def seed(self) -> int:
        """Of everything that was drawn."""
        return int(self.settings.get("seed", 0))

    @property
    def final(self) -> dict[str, Any]:
        """The last round that was evaluated."""
        return next((r for r in reversed(self.rounds) if r.keys() & {"train", "val", "test"}), {})

    @cached_property
    def notes(self) -> dict[str, np.ndarray]:
        """The diagnostics of every round so far."""
        return read_notes(self.path)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in their seed alone."""

    name: str
    runs: tuple[RunFolder, ...]

    @property
    def recipe(self) -> Recipe:
        """The same for all of them."""
        return self.runs[0].recipe


@dataclass(frozen=True, eq=False)
class Found:
    """The groups of runs in some folders, and the comparisons that `compare` made of them."""

    groups: tuple[Group, ...]
    comparisons: tuple[dict[str, Any], ...] = ()
    repeated: tuple[Path, ...] = ()  # runs with the settings and the seed of another one, which say nothing more

    @property
    def runs(self) -> list[RunFolder]:
        """All of them."""
        return [run for group in self.groups for run in group.runs]


def uncounted(line: Mapping[str, Any]) -> list[int]:
    """The clients of a round whose replies did not count: not finite, or, by a fault, never there or too late."""
    faults = line.get("faults", {})
    return sorted({*line.get("dropped", []), *faults.get("dropout", []), *faults.get("late", [])})


def find(folders: Iterable[str | Path]) -> Found:
    """Read run folders, folders of run folders, and the folders of comparisons."""
    groups: list[Group] = []
    comparisons, plain = [], {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}; give run folders, or a folder that holds some")
        if (folder / COMPARISON).exists():
            said = _comparison(folder)
            comparisons.append(said)
            groups += _compared(folder, said)
        else:
            plain |= {path.resolve(): path for path in _run_folders(folder)}
    known = {run.path.resolve() for group in groups for run in group.runs}
    begun = [run for where, path in plain.items() if where not in known and (run := read_run(path)).rounds]
    own, repeated = unlike(begun)
    groups = [replace(g, runs=kept) for g in groups if (kept := tuple(r for r in g.runs if r.rounds))] + grouped(own)
    if not groups:
        raise DataError("none of the runs has finished a round yet, so there is nothing to report")
    return Found(tuple(groups), tuple(comparisons), tuple(r.path for r in repeated))


def unlike(runs: Sequence[RunFolder]) -> tuple[list[RunFolder], list[RunFolder]]:
    """(runs of which no two have the same settings and seed, the others): the longest is kept, of these the first."""
    longest: dict[str, RunFolder] = {}
    for run in runs:
        key = _said(run.settings)
        if key not in longest or len(run.rounds) > len(longest[key].rounds):
            longest[key] = run
    kept = list(longest.values())
    return kept, [run for run in runs if run not in kept]


def read_run(path: Path) -> RunFolder:
    """One run folder."""
    try:
        settings = tomllib.loads((path / "experiment.toml").read_text(encoding="utf-8"))
        environment = json.loads((path / "environment.json").read_text())
        return RunFolder(path, read_recipe(path), settings, read_rounds(path), environment)
    except (OSError, ValueError) as e:
        if isinstance(e, DataError):
            raise
        raise DataError(f"{path} cannot be read as a run folder: {e}") from None


def grouped(runs: Sequence[RunFolder]) -> list[Group]:
    """The runs that differ in their seed alone together, each group under a name of its own."""
    alike: dict[str, list[RunFolder]] = {}
    for run in runs:
        alike.setdefault(_said({k: v for k, v in run.settings.items() if k != "seed"}), []).append(run)
    ordered = [tuple(sorted(some, key=lambda r: r.seed)) for some in alike.values()]
    names = [method_name(some[0].recipe) for some in ordered]
    for name in {n for n in names if names.count(n) > 1}:
        at = [i for i, n in enumerate(names) if n == name]
        for i, more in zip(at, _differences([ordered[i][0] for i in at]), strict=True):
            names[i] = f"{name}, {more}"
    return [Group(name, some) for name, some in zip(names, ordered, strict=True)]


def _said(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def method_name(recipe: Recipe) -> str:
    """A recipe by the method that it is, or else by its parts and what was set in them."""
    if recipe.fingerprint in (known := _methods()):
        return known[recipe.fingerprint]
    return " + ".join(["fedavg", *(_short(p) for p in recipe.parts().values() if p not in DEFAULTS.values())])


@cache
def _methods() -> dict[str, str]:
    return {make().fingerprint: name for name, make in reversed(METHODS.items())}


def _short(part: Part) -> str:
    """A part with the settings that are not its defaults."""
    known = fields(part)  # pyright: ignore[reportArgumentType]
    given = {f.name: v for f in known if (v := getattr(part, f.name)) != f.default}
    said = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return type(part).__name__ + (f"({said})" if said else "")


def _differences(runs: Sequence[RunFolder]) -> list[str]:
    """What sets runs of one method apart, in words: `lr 0.1`; or else where they lie."""
    flat = [_flat(run.settings) for run in runs]
    keys = dict.fromkeys(k for f in flat for k in f)
    vary = [k for k in keys if k != "seed" and len({json.dumps(f.get(k), default=str) for f in flat}) > 1]
    words = [", ".join(f"{k.rpartition('.')[2]} {f[k]}" for k in vary if k in f) for f in flat]
    return words if len(set(words)) == len(runs) else [str(run.path) for run in runs]


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def _run_folders(folder: Path) -> list[Path]:
    if (folder / "rounds.jsonl").exists():
        return [folder]
    found = sorted(path.parent for path in folder.rglob("rounds.jsonl"))
    if not found:
        raise DataError(f"{folder} is not a run folder, and none is below it: it has no rounds.jsonl")
    return found


def _comparison(folder: Path) -> dict[str, Any]:
    try:
        said = json.loads((folder / COMPARISON).read_text())
    except ValueError as e:
        raise DataError(f"{folder / COMPARISON} cannot be read as JSON: {e}") from None
    if not isinstance(said, dict) or not {"methods", "columns", "rows"} <= said.keys():
        raise DataError(f"{folder / COMPARISON} is not what `fedstrata compare` writes; compare again")
    return said


def _compared(folder: Path, said: Mapping[str, Any]) -> list[Group]:
    """The runs of a comparison under the names that it gives them; some may have been moved away."""
    groups = []
    for method in said["methods"]:
        there = [folder / r for r in method["runs"] if (folder / r / "rounds.jsonl").exists()]
        groups += [Group(method["name"], tuple(map(read_run, there)))] if there else []
    return groups
