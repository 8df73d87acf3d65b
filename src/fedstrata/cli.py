"""The command. Errors are one sentence on standard error and exit code 2."""

import json
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedstrata import __version__, cli_data, cli_lab, cli_report
from fedstrata.cli_options import (
    Alpha,
    Client,
    Data,
    HowMany,
    Jobs,
    Json,
    Label,
    Model,
    Options,
    Rounds,
    Seed,
    Set,
    called,
    run_folder,
)  # fmt: skip
from fedstrata.console import Watcher, show_explanation, split_in_words
from fedstrata.core import Recipe
from fedstrata.data import Dataset
from fedstrata.errors import DataError, FedstrataError, SettingError, check
from fedstrata.experiment import Experiment
from fedstrata.explain import explain as explained
from fedstrata.lab.sweep import SWEEP
from fedstrata.papers import OWN
from fedstrata.papers import cite as cited
from fedstrata.parse import parse_recipe
from fedstrata.partition import describe
from fedstrata.recipes import METHODS
from fedstrata.record import json_text, read_recipe
from fedstrata.report import draw_curves, draw_split, methods_table, runs_table, split_table
from fedstrata.report.tables import described
from fedstrata.simulate import Run
from fedstrata.stopping import Stopped
from fedstrata.track import tracking

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated learning on data that differs from client to client.",
)
app.add_typer(cli_data.app, name="data")
app.command()(cli_report.report)
out, err = Console(), Console(stderr=True)

STOPPED = 130
"""The exit code after Ctrl-C, as of every command."""


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False) -> None:
    if version:
        typer.echo(f"fedstrata {__version__}")
        raise typer.Exit


@app.command()
def run(
    experiment: Annotated[Path | None, typer.Argument(help="A TOML file; the options below overrule it.")] = None,
    method: Annotated[str | None, typer.Option(help="A method, e.g. fedlws or 'fedlws(beta=0.05)'.")] = None,
    data: Data = None,
    label: Label = None,
    client: Client = None,
    clients: HowMany = None,
    alpha: Alpha = None,
    model: Model = None,
    rounds: Rounds = None,
    seed: Seed = None,
    set_: Set = None,
    jobs: Jobs = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="The run folder; runs/... unless given.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run that was broken off in this folder.")] = None,
    track: Annotated[list[str] | None, typer.Option(help="Tell tensorboard or mlflow; may be given twice.")] = None,
    json_: Json = False,
) -> None:
    """Run an experiment, or all of a sweep, and write its run folder, or go on with one that was broken off."""
    plain = {"data": data, "label": label, "client": client, "model": model, "rounds": rounds, "seed": seed}
    if resume is not None:
        _refuse_beside_resume(experiment or method or out_dir)
        experiment, out_dir = _begun(resume), resume
    options = Options(experiment, method, plain, {"clients": clients, "alpha": alpha}, set_)
    name, settings = options.read()
    if SWEEP in settings:
        check(not track, "--track tells of one run; leave it out for a sweep")
        cli_lab.sweep(options, settings, out_dir, json_, jobs)
        return
    name = resume.name if resume is not None else name
    exp, loaded = _ready(options, name, settings)
    short = "-".join(re.findall(r"\w+", re.sub(r"\(.*?\)", "", name))) or "recipe"  # without the settings in brackets
    with (
        run_folder(out_dir, short) as folder,
        Watcher(err, {name: exp.rounds}) as watcher,
        tracking(track or [], folder, exp.settings(), name, watcher.of(name)) as told,
    ):
        result = exp.run(folder, told, loaded, resume is not None)
    out.print(runs_table({short: result.final}, f"{name} on {called(exp.data)}, after {exp.rounds} rounds: accuracy"))
    if empty := sum("empty" in r for r in result.rounds):
        out.print(f"In {empty} of {exp.rounds} rounds no client was usable, so nothing changed; see the warnings.")
    out.print(f"The run folder is {folder}", markup=False, soft_wrap=True)
    if json_:
        typer.echo(json_text({"method": name} | _facts(exp, result)))


def _ready(options: Options, name: str, settings: dict[str, Any]) -> tuple[Experiment, Dataset]:
    """The experiment and its data, tried out as far as that takes no round; says how the data is split."""
    with options.blamed():
        plan = Experiment.of(settings)
        exp = plan.with_proxy()
        loaded = exp.dataset()
        exp = exp.settled(loaded)
        exp.rehearse(loaded)
        split = split_in_words(describe(exp.clients(loaded)))
    if exp.proxy != plan.proxy:
        taken = f"{exp.proxy} examples are taken out of the test set (proxy = {exp.proxy})"
        err.print(f"{name} needs data on the server: {taken}.")
    err.print(split, highlight=False)
    return exp, loaded


def _refuse_beside_resume(given: object) -> None:
    if given is not None:
        raise SettingError("--resume goes on with what its folder says; leave out the file, --method and --out")


def _begun(folder: Path) -> Path:
    """The experiment of a run folder."""
    if not (folder / "experiment.toml").exists():
        raise DataError(f"{folder} is not the folder of a run that was begun: it has no experiment.toml")
    return folder / "experiment.toml"


def _facts(exp: Experiment, result: Run) -> dict[str, Any]:
    """What `--json` says of a run."""
    facts = {"recipe": exp.recipe.fingerprint, "rounds": exp.rounds, "seed": exp.seed, "run": str(result.folder)}
    facts |= {k: v for k, v in result.final.items() if isinstance(v, dict)}
    seconds = round(sum(r["seconds"] for r in result.rounds), 3)
    return facts | {"dropped": sum(len(r["dropped"]) for r in result.rounds), "seconds": seconds}


app.command()(cli_lab.compare)
app.command()(cli_lab.advise)


@app.command()
def partition(
    experiment: Annotated[Path | None, typer.Argument(help="A TOML file; the options below overrule it.")] = None,
    data: Data = None,
    label: Label = None,
    client: Client = None,
    clients: HowMany = None,
    alpha: Alpha = None,
    seed: Seed = None,
    set_: Set = None,
    plot: Annotated[Path | None, typer.Option(help="Draw who owns what into this file, e.g. split.png.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Split the data over the clients, tell what came out, and draw it."""
    plain = {"data": data, "label": label, "client": client, "seed": seed}
    options = Options(experiment, None, plain, {"clients": clients, "alpha": alpha}, set_)
    _, settings = options.read()
    with options.blamed():
        exp = Experiment.of(settings)
        loaded = exp.dataset()
        exp = exp.settled(loaded)
        split = exp.clients(loaded)
    facts = describe(split)
    if plot is not None:
        drawn = draw_split(split, plot, f"{called(exp.data)}, {exp.partition!r}")
        err.print(f"The picture is {drawn}", highlight=False, markup=False, soft_wrap=True)
    if json_:
        typer.echo(json_text(facts))
    else:
        out.print(split_table(facts, f"{called(exp.data)}, {exp.partition!r}, seed {exp.seed}"))


@app.command()
def methods(json_: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> None:
    """List the methods: what each adds, its paper, what it needs."""
    if not json_:
        out.print(methods_table(METHODS))
        out.print("fedstrata explain METHOD tells more about one.")
        return
    rows = {
        n: dict(zip(("adds", "paper"), described(m), strict=True)) | {"needs": sorted(m().needs)}
        for n, m in METHODS.items()
    }
    typer.echo(json.dumps(rows))


@app.command()
def explain(
    method: Annotated[str, typer.Argument(help="A method, e.g. scaffold or 'fedprox(mu=0.1)'.")],
    model: Annotated[str, typer.Option(help="The model, for digits, whose costs are shown.")] = "mlp",
    json_: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show a method's parts, their equations, what it costs, what leaves a client, where its sources disagree."""
    e = explained(method, model)
    if not json_:
        show_explanation(out, e)
        return
    told = {"method": method, "recipe": e.recipe.to_dict(), "cost": asdict(e.cost)}
    told |= {"decisions": [asdict(d) for d in e.decisions], "references": e.references}
    typer.echo(json.dumps(told))


@app.command()
def cite(run: Annotated[str, typer.Argument(help="A run folder, or a method, e.g. 'fedprox + lws'.")]) -> None:
    """Print the BibTeX of the papers behind a run or a method, and of fedstrata."""
    typer.echo(f"{cited(_recipe_of(run))}\n\n{OWN}")


@app.command()
def demo(folder: Annotated[Path | None, typer.Option("--out", help="Where the runs go.")] = None) -> None:
    """Train fedavg, fedlayerwise and fedlws side by side on unequal clients: a first minute with fedstrata."""
    names, rounds = ("fedavg", "fedlayerwise", "fedlws"), 20
    plans = {n: Experiment.of({"method": n, "rounds": rounds}) for n in names}
    split = split_in_words(describe(plans["fedavg"].clients()))
    out.print(f"Handwritten digits, dealt out unequally: {split}", highlight=False)
    with run_folder(folder, "demo") as folder, Watcher(err, dict.fromkeys(names, rounds)) as watcher:
        runs = {n: plan.run(folder / n, watcher.of(n)) for n, plan in plans.items()}
    out.print(runs_table({n: r.final for n, r in runs.items()}, f"Accuracy after {rounds} rounds"))
    curves = draw_curves({n: r.rounds for n, r in runs.items()}, folder / "curves.png")
    out.print(f"The curves are in {curves}, the runs beside them.")
    cli_report.demo_report(folder)
    out.print("Next: fedstrata methods, fedstrata explain fedlws, fedstrata run --method scaffold")


def _recipe_of(run: str) -> Recipe:
    """Of a run folder, or else of a text."""
    if Path(run).is_dir():
        return read_recipe(run)
    if "/" in run or os.sep in run:
        raise DataError(f"there is no folder {run}; give a run folder, or a method, e.g. fedlws")
    return parse_recipe(run)


def main(args: list[str] | None = None) -> None:
    """The entry point: whatever goes wrong is one sentence and an exit code above 0."""
    if "" not in sys.path:
        sys.path.append("")  # this folder may hold a model of one's own; last, so that it hides nothing installed
    try:
        code: Any = app(args, standalone_mode=False)
    except FedstrataError as e:
        _stop(str(e))
    except Stopped as e:
        _stop(str(e), e.code)
    except (typer.Abort, KeyboardInterrupt) as e:
        asked = e.__cause__ if isinstance(e.__cause__, Stopped) else None
        _stop(str(asked or "stopped; what was finished is in the run folder"), asked.code if asked else STOPPED)
    except Exception as e:
        if said := getattr(e, "format_message", None):  # click's own, which newer typers carry within themselves
            _stop(f"{said()} Try fedstrata --help.")
        if os.environ.get("FEDSTRATA_DEBUG"):
            raise
        _stop(f"{type(e).__name__}: {e} (set FEDSTRATA_DEBUG=1 to see where)")
    else:
        if code == STOPPED:
            _stop("stopped; what was finished is in the run folder", STOPPED)
        sys.exit(code if isinstance(code, int) else 0)


def _stop(sentence: str, code: int = 2) -> None:
    print(f"fedstrata: {' '.join(sentence.split())}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
