"""The laboratory: comparing methods, advice, and the sweeps that `run` finds in a file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from fedstrata.commands.settings import Options, called, run_folder
from fedstrata.console import RunsWatcher, err, out
from fedstrata.errors import SettingError, check
from fedstrata.experiment import Experiment
from fedstrata.lab.advise import advise as advised
from fedstrata.lab.compare import Comparison, Entry, contest, kept_or_not, prepared, slug, unlike
from fedstrata.lab.compare import compare as compared
from fedstrata.lab.jobs import loaded
from fedstrata.lab.sweep import SWEEP, Point, checked_axes, expand
from fedstrata.lab.words import comparison_table
from fedstrata.parse import parse_recipe
from fedstrata.record import json_text


def compare(
    methods: Sequence[str],
    given: Mapping[str, Any],
    more: Sequence[str] | None,
    seeds: int,
    target: float | None,
    jobs: int | None,
    out_dir: Path | None,
    json_: bool,
) -> None:
    """Run methods over the same seeds, and tell which differences are real and which are noise."""
    files = [m for m in methods if m.endswith(".toml")]
    names = [m for m in methods if m not in files]
    check(len(files) <= 1, f"compare takes one experiment file; got {', '.join(files)}")
    base = _base(Options(Path(files[0]) if files else None, None, given, more))
    check(seeds >= 1, f"--seeds must be at least 1; got {seeds}")
    for name in names:
        parse_recipe(name)  # or a sentence, before any progress is shown
    with run_folder(out_dir, "compare") as folder, RunsWatcher(err, len(names) * seeds) as watcher:
        found = compared(names, base, seeds=seeds, target=target, out=folder, jobs=jobs, told=watcher.told)
    show(found, f"{called(base.data)}, {base.rounds} rounds, {_many(seeds, 'seed')}", watcher.found, json_)


def sweep(options: Options, settings: dict[str, Any], out_dir: Path | None, json_: bool, jobs: int | None) -> None:
    """Run all experiments of a sweep, and compare its points over the seeds among them."""
    if twice := [name for name in options.names() if name in checked_axes(settings)]:
        raise SettingError(f"{options.file}: {twice[0]} is in [{SWEEP}]; leave out the option that sets it too")
    with options.blamed():
        points = expand(settings)
        entries, _ = prepared(_entries(points))
    seeds = list(dict.fromkeys(p.experiment.seed for p in points))
    name = options.file.stem if options.file is not None else SWEEP
    base = {k: v for k, v in points[0].experiment.settings().items() if k not in checked_axes(settings)}
    with run_folder(out_dir, name) as folder, RunsWatcher(err, len(points)) as watcher, kept_or_not(folder) as folder:
        found = contest(entries, seeds, base, folder, None, jobs, watcher.told)
    show(found, f"{name}: {_many(len(points), 'run')}", watcher.found, json_)


def _entries(points: Sequence[Point]) -> list[Entry]:
    """The points of a sweep that differ in their seed alone are one entry."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        rest = {k: v for k, v in point.values.items() if k != "seed"}
        groups.setdefault(json.dumps(rest, default=str), []).append(point)
    names = unlike([mine[0].name for mine in groups.values()])
    slugs = unlike([slug(name) for name in names])
    runs = [tuple(p.experiment.with_proxy() for p in mine) for mine in groups.values()]
    return [Entry(*one) for one in zip(names, slugs, runs, strict=True)]


def advise(options: Options, budget: float, jobs: int | None, out_dir: Path | None, json_: bool) -> None:
    """Look at how clients differ, race methods that suit, and recommend one."""
    check(budget > 0, f"--budget must be above 0 minutes; got {budget:g}")
    base = _base(options)
    with run_folder(out_dir, "advise") as folder, RunsWatcher(err, None) as watcher:
        advice = advised(base, budget=budget, out=folder, jobs=jobs, told=watcher.told, say=watcher.say)
    final = advice.final
    out.print(comparison_table(final.columns, final.rows, f"The last race, {_many(len(final.seeds), 'seed')}"))
    out.print(advice.words[-1], highlight=False, markup=False, soft_wrap=True)
    out.print(f"\n{advice.command}", highlight=False, markup=False, soft_wrap=True)
    if json_:
        typer.echo(json_text(advice.to_dict()))


def _base(options: Options) -> Experiment:
    """The experiment that the file and the options say, after a look at its data and model."""
    _, settings = options.read()
    with options.blamed():
        base = Experiment.of(settings)
        base.rehearse(loaded(base))
    return base


def show(found: Comparison, title: str, there: int, json_: bool) -> None:
    """A comparison as a table and sentences."""
    out.print(comparison_table(found.columns, found.rows, title))
    for sentence in found.words:
        out.print(sentence, highlight=False, markup=False, soft_wrap=True)
    if there:
        out.print(f"{_many(there, 'run')} of these were there already.", highlight=False)
    out.print(f"The folder is {found.folder}", markup=False, highlight=False, soft_wrap=True)
    if json_:
        typer.echo(json_text(found.to_dict()))


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
