"""The commands that run experiments, and the one that splits data for them."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fedstrata.cli.options import File, Jobs, Json, JsonAlone, Method, RunFolder, RunsFolder, Set, Split, Work, spread

ENGINES = "Who runs the clients: auto, stacked, pool, apart or ray (many machines)."


@spread
def run(
    *,
    experiment: File = None,
    method: Method = None,
    given: Work,
    set_: Set = None,
    engine: Annotated[str | None, Option(help=ENGINES, show_default="auto")] = None,
    ray_address: Annotated[str | None, Option(help="A Ray cluster, e.g. 10.0.0.1:6379.")] = None,
    jobs: Jobs = None,
    out_dir: RunFolder = None,
    resume: Annotated[Path | None, Option(help="Go on with the run that was broken off in this folder.")] = None,
    track: Annotated[list[str] | None, Option(help="Tell tensorboard or mlflow; may be given more than once.")] = None,
    json_: Json = False,
) -> None:
    """Run an experiment, or all of a sweep, and write its run folder, or go on with one that was broken off."""
    from fedstrata.commands.run import run
    from fedstrata.commands.settings import Options

    where = {"engine": engine or ("ray" if ray_address is not None else None), "ray_address": ray_address}
    run(Options(experiment, method, vars(given) | where, set_), out_dir, resume, jobs, track or [], json_)


@spread
def compare(
    *,
    methods: Annotated[list[str], Argument(help="Methods, e.g. fedavg 'fedavg + lws', and perhaps a TOML file.")],
    given: Work,
    set_: Set = None,
    seeds: Annotated[int, Option(help="How many seeds each method runs with.")] = 3,
    target: Annotated[float | None, Option(help="The accuracy that rounds are counted to, e.g. 0.9.")] = None,
    jobs: Jobs = None,
    out_dir: RunsFolder = None,
    json_: Json = False,
) -> None:
    """Run methods over the same seeds, and tell which differences are real and which are noise."""
    from fedstrata.commands.lab import compare

    compare(methods, vars(given), set_, seeds, target, jobs, out_dir, json_)


@spread
def advise(
    *,
    experiment: File = None,
    given: Work,
    set_: Set = None,
    budget: Annotated[float, Option(help="How many minutes to race methods for.")] = 5.0,
    jobs: Jobs = None,
    out_dir: RunsFolder = None,
    json_: Json = False,
) -> None:
    """Look at how your clients differ, race methods that suit, and recommend one."""
    from fedstrata.commands.lab import advise
    from fedstrata.commands.settings import Options

    advise(Options(experiment, None, vars(given), set_), budget, jobs, out_dir, json_)


@spread
def partition(
    *,
    experiment: File = None,
    given: Split,
    set_: Set = None,
    plot: Annotated[Path | None, Option(help="Draw who owns what into this file, e.g. split.png.")] = None,
    json_: JsonAlone = False,
) -> None:
    """Split the data over the clients, tell what came out, and draw it."""
    from fedstrata.commands.run import partition
    from fedstrata.commands.settings import Options

    partition(Options(experiment, None, vars(given), set_), plot, json_)


def demo(out_dir: RunsFolder = None) -> None:
    """Train fedavg, fedlayerwise and fedlws side by side on unequal clients: a first minute with fedstrata."""
    from fedstrata.commands.run import demo

    demo(out_dir)
