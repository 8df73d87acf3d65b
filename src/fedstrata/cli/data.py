"""The commands about data: list, get, check."""

from typing import Annotated

from typer import Argument, Typer

from fedstrata.cli.options import JsonAlone

app = Typer(no_args_is_help=True, help="Public data sets: what there is, getting it, checking it.")


@app.command("list")
def list_(json_: JsonAlone = False) -> None:
    """List the data sets that can be had by name, and which are here."""
    from fedstrata.commands.data import show

    show(json_)


@app.command()
def get(names: Annotated[list[str], Argument(help="Data sets, e.g. mnist cifar10.")]) -> None:
    """Download data sets into the data folder; what is there already is left alone."""
    from fedstrata.commands.data import get

    get(names)


@app.command()
def check(
    names: Annotated[list[str] | None, Argument(help="Data sets; all that are here unless given.")] = None,
) -> None:
    """Verify the files that are here: checksums, counts, classes."""
    from fedstrata.commands.data import check

    check(names)
