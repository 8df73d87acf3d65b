"""Running an experiment, splitting its data, and the demo."""

from dataclasses import replace
from pathlib import Path

import typer

from fedstrata.commands.lab import sweep
from fedstrata.commands.report import demo_report
from fedstrata.commands.settings import Options, called, folder_name, ready, run_folder, tell
from fedstrata.console import Watcher, err, out, split_in_words
from fedstrata.errors import DataError, check
from fedstrata.experiment import Experiment
from fedstrata.files import refuse_occupied
from fedstrata.lab.sweep import SWEEP
from fedstrata.partition import describe
from fedstrata.record import json_text
from fedstrata.report import draw_curves, draw_split, runs_table, split_table
from fedstrata.track import refuse_unknown_trackers, tracking


def run(
    options: Options, out_dir: Path | None, resume: Path | None, jobs: int | None, track: list[str], json_: bool
) -> None:
    """Run an experiment, or all of a sweep, and write its run folder, or go on with one that was broken off."""
    check(jobs is None or jobs >= 1, f"jobs must be at least 1; got {jobs}")
    refuse_unknown_trackers(track)
    if resume is not None:
        alone = options.file is None and options.method is None and out_dir is None
        check(alone, "--resume goes on with what its folder says; leave out the file, --method and --out")
        options, out_dir = replace(options, file=_begun(resume)), resume
    name, settings = options.read()
    if SWEEP in settings:
        check(not track, "--track tells of one run; leave it out for a sweep")
        sweep(options, settings, out_dir, json_, jobs)
        return
    name = resume.name if resume is not None else name
    if out_dir is not None and resume is None:
        refuse_occupied(out_dir)  # before the data is loaded
    exp, loaded = ready(options, name, settings)
    with (
        run_folder(out_dir, folder_name(name)) as folder,
        Watcher(err, {name: exp.rounds}) as watcher,
        tracking(track, folder, exp.settings(), name, watcher.of(name)) as told,
    ):
        result = exp.run(folder, told, loaded, resume is not None)
        watcher.ended(name, result.final)
    assert result.folder is not None
    tell(exp, name, result.rounds, result.folder, json_)


def _begun(folder: Path) -> Path:
    """The experiment of a run folder."""
    if not folder.exists():
        raise DataError(f"there is no folder {folder} to go on with; give that of a run that was broken off")
    if not (folder / "experiment.toml").exists() and any(folder.glob("*/seed-*/experiment.toml")):
        raise DataError(f"{folder} holds several runs; they go on by the command that began them, with --out {folder}")
    if not (folder / "experiment.toml").exists():
        raise DataError(f"{folder} is not the folder of a run that was begun: it has no experiment.toml")
    return folder / "experiment.toml"


def partition(options: Options, plot: Path | None, json_: bool) -> None:
    """Split the data over the clients, tell what came out, and draw it."""
    _, settings = options.read()
    with options.blamed():
        exp = Experiment.of(settings)
        loaded = exp.dataset()
        exp = exp.settled(loaded)
        split = exp.clients(loaded)
    facts = describe(split)
    if plot is not None:
        drawn = draw_split(split, plot, f"{called(exp.data)}, {exp.partition!r}", loaded.names)
        err.print(f"The picture is {drawn}", highlight=False, markup=False, soft_wrap=True)
    if json_:
        typer.echo(json_text(facts))
    else:
        out.print(split_table(facts, f"{called(exp.data)}, {exp.partition!r}, seed {exp.seed}"))


def demo(out_dir: Path | None) -> None:
    """Train fedavg, fedlayerwise and fedlws side by side on unequal clients."""
    names, rounds = ("fedavg", "fedlayerwise", "fedlws"), 20
    plans = {n: Experiment.of({"method": n, "rounds": rounds}) for n in names}
    split = split_in_words(describe(plans["fedavg"].clients()))
    out.print(f"Handwritten digits, dealt out unequally: {split}", highlight=False)
    with run_folder(out_dir, "demo") as folder, Watcher(err, dict.fromkeys(names, rounds)) as watcher:
        runs = {n: plan.run(folder / n, watcher.of(n)) for n, plan in plans.items()}
    out.print(runs_table({n: r.final for n, r in runs.items()}, f"Accuracy after {rounds} rounds"))
    curves = draw_curves({n: r.rounds for n, r in runs.items()}, folder / "curves.png")
    out.print(f"The curves are in {curves}, the runs beside them.")
    demo_report(folder)
    out.print("Next: fedstrata methods, fedstrata explain fedlws, fedstrata run --method scaffold")
