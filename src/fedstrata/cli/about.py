"""The commands that tell something: about methods, about runs, about published tables."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fedstrata.cli.options import Jobs, JsonAlone

Words = Annotated[
    list[str] | None, Option(help="Only those with this word in their name; may be given more than once.")
]


def methods(json_: JsonAlone = False) -> None:
    """List the methods: what each adds, its paper, what it needs."""
    from fedstrata.commands.about import methods

    methods(json_)


def explain(
    method: Annotated[str, Argument(help="A method, e.g. scaffold or 'fedprox(mu=0.1)'.")],
    model: Annotated[str, Option(help="The model, for digits, whose costs are shown.")] = "mlp",
    json_: JsonAlone = False,
) -> None:
    """Show a method's parts, their equations, what it costs, what leaves a client, where its sources disagree."""
    from fedstrata.commands.about import explain

    explain(method, model, json_)


def cite(run: Annotated[str, Argument(help="A run folder, or a method, e.g. 'fedprox + lws'.")]) -> None:
    """Print the BibTeX of the papers behind a run or a method, and of fedstrata."""
    from fedstrata.commands.about import cite

    cite(run)


def report(
    runs: Annotated[list[Path], Argument(help="Run folders, folders that hold some, or what `compare` wrote.")],
    page: Annotated[Path, Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, Option(help="The title of the page.")] = None,
    figures: Annotated[Path | None, Option(help="Also draw figures for papers, PDF and PNG, into this folder.")] = None,
) -> None:
    """Write one HTML page about some runs: curves, tables, the split, the layer lens. It opens offline."""
    from fedstrata.commands.report import report

    report(runs, page, title, figures)


def reproduce(
    names: Annotated[list[str], Argument(help="Published tables, or `list` to see which there are.")],
    scale: Annotated[str, Option(help="full, or quick: minutes on two cores, for the direction.")] = "full",
    seeds: Annotated[int | None, Option(help="How many seeds; as many as the table wants unless given.")] = None,
    device: Annotated[str, Option(help="cpu or cuda.")] = "cpu",
    precision: Annotated[str, Option(help="Of products: float32, tf32 on a GPU, or bf16.")] = "float32",
    rows: Words = None,
    columns: Words = None,
    jobs: Jobs = None,
    runs: Annotated[Path | None, Option(help="The folder of the runs; runs/reproduce unless given.")] = None,
    results: Annotated[Path | None, Option(help="Where results are kept, instead of beside the table.")] = None,
) -> None:
    """Make published tables again: run what is missing, and tell what came out beside what was printed."""
    from fedstrata.commands.reproduce import reproduce_all

    means = {"device": device, "precision": precision}
    reproduce_all(names, scale, seeds, means, rows or (), columns or (), jobs, runs, results)
