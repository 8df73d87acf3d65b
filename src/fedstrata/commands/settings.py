"""What several commands share: settings from a file and the options, run folders, what is told in the end."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import torch
import typer

from fedstrata.console import err, out, split_in_words
from fedstrata.core import Recipe
from fedstrata.data import Dataset, is_own
from fedstrata.data.columns import leave_out
from fedstrata.errors import DataError, ModelError, NeedError, SettingError
from fedstrata.experiment import Experiment, merged, put, read_toml
from fedstrata.lab.sweep import SWEEP, checked_axes
from fedstrata.parse import load_outside, parse_recipe
from fedstrata.partition import describe
from fedstrata.recipes import METHODS
from fedstrata.record import json_text
from fedstrata.report import runs_table
from fedstrata.report.folders import method_name

PARTITION = "clients", "alpha"
"""Options that are settings of the partition."""

SHOWN = 10
"""Names of classes that are told."""


@dataclass(frozen=True)
class Options:
    """A TOML file, and what the command's options put in its place."""

    file: Path | None = None
    method: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)  # by the names of options; None where one was not given
    more: Sequence[str] | None = None  # key=value

    def names(self) -> list[str]:
        """The settings that options name."""
        said = [k for k, v in ({"method": self.method} | dict(self.given)).items() if v is not None]
        said = [f"partition.{k}" if k in PARTITION else k for k in said]
        return said + [m.partition("=")[0].strip() for m in self.more or ()]

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What is wrong with the settings within this block is said with the file's name."""
        where = f"{self.file} and the options given" if self.names() else str(self.file)
        try:
            yield
        except (SettingError, DataError, ModelError, NeedError) as e:
            if self.file is None or str(self.file) in str(e):
                raise
            raise type(e)(f"{where}: {e}") from None

    def read(self) -> tuple[str, dict[str, Any]]:
        """(what the method is called, the settings), after a look at the file alone."""
        if self.file is not None and not self.file.exists() and re.split(r"\W", str(self.file))[0] in METHODS:
            raise SettingError(f"there is no file {self.file}; a method is given by --method {str(self.file)!r}")
        settings = read_toml(self.file) if self.file is not None else {}
        if self.file is not None:
            with Options(self.file).blamed():
                sweep = checked_axes(settings)
                Experiment.of({k: v for k, v in settings.items() if k != SWEEP and not (k == "method" and k in sweep)})
        with self.blamed():
            return self._overruled(settings)

    def _overruled(self, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        stem = _called(self.file) if self.file is not None else ""
        said = settings.get("method", stem if "recipe" in settings else "fedavg")
        name = str(said if self.method is None else self.method)
        if self.method is not None:
            settings.pop("recipe", None)
        if "recipe" not in settings:
            settings["recipe"] = parse_recipe(name).to_dict()
            settings.pop("method", None)
        given = {k: v for k, v in self.given.items() if v is not None}
        split = {k: given.pop(k) for k in PARTITION if k in given}
        settings = merged(settings, given | ({"partition": split} if split else {}))
        before = deepcopy(settings.get("recipe"))
        for assignment in self.more or ():
            put(settings, assignment)
        if settings.get("recipe") != before:
            name = _named(settings["recipe"]) or name
        if is_own(str(settings.get("data", ""))):
            settings["data"] = str(Path(str(settings["data"])).resolve())  # the record can be run from anywhere
        return name, settings


def _named(recipe: Any) -> str | None:
    """A recipe by what it is, once its parts were set one by one; None where it is none, which is told elsewhere."""
    try:
        load_outside()
        return method_name(Recipe.from_dict(recipe))
    except (SettingError, AttributeError):
        return None


def _called(file: Path) -> str:
    """An experiment by its file; that of a run folder, which is called the same in all of them, by its folder."""
    return file.resolve().parent.name if file.name == "experiment.toml" else file.stem


def ready(
    options: Options,
    name: str,
    settings: dict[str, Any],
    changed: Callable[[Experiment], Experiment] = lambda exp: exp,
) -> tuple[Experiment, Dataset]:
    """The experiment and its data, tried out as far as that takes no round; says how the data is split."""
    with options.blamed():
        plan = Experiment.of(settings)
        exp = plan.with_proxy()
        loaded = exp.dataset()
        exp = changed(exp.settled(loaded))
        if exp.proxy != plan.proxy:
            taken = f"{exp.proxy} examples are taken out of the test set (proxy = {exp.proxy})"
            err.print(f"{name} needs data on the server: {taken}.")
        exp.rehearse(loaded)
        split = split_in_words(describe(exp.clients(loaded)))
    if is_own(exp.data) and loaded.owner is not None and hasattr(exp.partition, "clients"):
        anew = f"{called(exp.data)} says whose examples are whose, but {exp.partition!r} deals them out anew"
        err.print(f"{anew}; without --clients and --alpha its own clients count.", highlight=False, markup=False)
    err.print(split, highlight=False)
    if loaded.names is not None:
        some = ", ".join(loaded.names[:SHOWN]) + ", ..." * (len(loaded.names) > SHOWN)
        err.print(f"The classes are {some}.", highlight=False, markup=False)
    if is_own(exp.data) and (empty := _classes_of_nobody(loaded)):
        some = ", ".join(map(str, empty[:SHOWN])) + ", ..." * (len(empty) > SHOWN)
        gaps = f"No example is of class {some}, and the model has an output for it all the same"
        err.print(f"{gaps}; labels count from 0 without gaps.", highlight=False, markup=False)
    for column in loaded.counting:
        every = f"The column {column!r} has another whole number in every row, and is a feature like the others"
        way = f"if it is the number of a case, leave it out ({leave_out(column)})"
        err.print(f"{every}; {way}.", highlight=False, markup=False)
    return exp, loaded


def _classes_of_nobody(data: Dataset) -> list[int]:
    """Classes below the largest label that no example is of; where words name them, some may be elsewhere."""
    there = torch.cat((data.train[1], data.test[1])).unique().tolist()
    return [] if data.names is not None else sorted(set(range(data.classes)) - set(there))


def folder_name(name: str) -> str:
    """What a method is called in the name of a folder: without the settings in brackets."""
    return "-".join(re.findall(r"\w+", re.sub(r"\(.*?\)", "", name))) or "recipe"


def tell(exp: Experiment, name: str, rounds: list[dict[str, Any]], folder: Path, json_: bool) -> None:
    """What came out of a run: its accuracy as a table, where it is, and all of it as JSON if that is wanted."""
    final = next((r for r in reversed(rounds) if r.keys() & {"train", "val", "test"}), {})
    title = f"{name} on {called(exp.data)}, after {exp.rounds} round{'s' * (exp.rounds != 1)}: accuracy"
    out.print(runs_table({folder_name(name): final}, title))
    if empty := sum("empty" in r for r in rounds):
        out.print(f"In {empty} of {exp.rounds} rounds no client was usable, so nothing changed; see the warnings.")
    out.print(f"The run folder is {folder}", markup=False, soft_wrap=True)
    if json_:
        facts = {"method": name, "recipe": exp.recipe.fingerprint, "rounds": exp.rounds, "seed": exp.seed}
        facts |= {"run": str(folder)} | {k: v for k, v in final.items() if isinstance(v, dict)}
        facts |= {"dropped": sum(len(r["dropped"]) for r in rounds)}
        typer.echo(json_text(facts | {"seconds": round(sum(r["seconds"] for r in rounds), 3)}))


def called(data: str) -> str:
    """A data set by its name, a file by its own without the folders."""
    return Path(data).name if is_own(data) else data


@contextmanager
def run_folder(given: Path | None, name: str) -> Iterator[Path]:
    """The folder that was given, or a new one below runs/, which goes away if nothing was written into it."""
    folder = given or new_folder(name)
    try:
        yield folder
    finally:
        if given is None:
            with suppress(OSError):  # it is not empty, as it should be
                folder.rmdir()


def new_folder(name: str) -> Path:
    """A new folder below runs/, made at once: another process that starts now gets another one."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    for i in count():
        folder = Path("runs") / (f"{stem}-{i}" if i else stem)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not Path("runs").is_dir():
                raise DataError("runs is a file, and the folder of the runs; give another by --out") from None
        except OSError as e:
            raise DataError(f"{folder} cannot be made ({e.strerror or e}); give another folder by --out") from None
        else:
            return folder
    raise AssertionError
