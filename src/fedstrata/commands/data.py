"""Public data sets: what there is, getting it, checking it."""

import json

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedstrata.console import out
from fedstrata.data.check import check_files
from fedstrata.data.download import files_of, missing
from fedstrata.data.sources import SOURCES
from fedstrata.data.store import root
from fedstrata.errors import DataError, near


def show(json_: bool) -> None:
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


def get(names: list[str]) -> None:
    """Download data sets into the data folder; what is there already is left alone."""
    for name in _known(names):
        files_of(name)
        out.print(f"{name} is in {root()}", highlight=False)


def check(names: list[str] | None) -> None:
    """Verify the files of these data sets, or of all that are here."""
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
