"""The commands about data: list, get, check."""

import json
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedstrata.data.check import check_files
from fedstrata.data.download import files_of, missing
from fedstrata.data.sources import SOURCES
from fedstrata.data.store import root
from fedstrata.errors import DataError, near

app = typer.Typer(no_args_is_help=True, help="Public data sets: what there is, getting it, checking it.")
out = Console()

Names = Annotated[list[str] | None, typer.Argument(help="Data sets; all unless given.")]


@app.command("list")
def list_(json_: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> None:
    """List the data sets that can be had by name, and which are here."""
    here = {name: not missing(source) for name, source in SOURCES.items()}
    if json_:
        typer.echo(json.dumps({n: {"about": s.about, "here": here[n], "page": s.page} for n, s in SOURCES.items()}))
        return
    table = Table(box=SIMPLE_HEAD)
    for column in ("data set", "what it is", "here", "MiB"):
        table.add_column(column, justify="right" if column == "MiB" else "left", no_wrap=column == "data set")
    table.add_row("digits", "handwritten digits, 1,797 images of 8x8, 10 classes", "yes", "0")
    for name, source in SOURCES.items():
        table.add_row(name, source.about, "yes" if here[name] else "-", str(source.mebibytes))
    out.print(table)
    out.print(f"The folder is {root()} (FEDSTRATA_DATA). MiB are those to download.", highlight=False)


@app.command()
def get(names: Annotated[list[str], typer.Argument(help="Data sets, e.g. mnist cifar10.")]) -> None:
    """Download data sets into the data folder; what is there already is left alone."""
    for name in _known(names):
        files_of(name)
        out.print(f"{name} is in {root()}", highlight=False)


@app.command()
def check(names: Names = None) -> None:
    """Verify the files that are here: checksums, counts, classes. All that are here unless some are named."""
    asked = _known(names) if names else [n for n, s in SOURCES.items() if not missing(s)]
    if not asked:
        raise DataError(f"there is no data set in {root()}; `fedstrata data get NAME` downloads one")
    results = {name: check_files(name) for name in asked}
    for name, result in results.items():
        out.print(f"{name}: {result.state}, {result.said}", highlight=False, soft_wrap=True)
    if bad := [n for n, r in results.items() if not r.usable]:
        do = f"`fedstrata data get {bad[0]}` gets what is missing; remove files that are broken first"
        raise DataError(f"{', '.join(bad)} cannot be used; {do}")


def _known(names: list[str]) -> list[str]:
    for name in names:
        if name == "digits":
            raise DataError("digits comes with scikit-learn: there is nothing to get or to check")
        if name not in SOURCES:
            raise DataError(f"no public data set is called {name!r}; {near(name, SOURCES)}")
    return names
