"""What can be told without running anything: the methods, one of them, its papers."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import typer

from fedstrata.console import out, show_explanation
from fedstrata.core import Recipe
from fedstrata.errors import DataError
from fedstrata.explain import explain as explained
from fedstrata.papers import OWN
from fedstrata.papers import cite as cited
from fedstrata.parse import parse_recipe
from fedstrata.recipes import METHODS
from fedstrata.record import read_recipe
from fedstrata.report import methods_table
from fedstrata.report.tables import described


def methods(json_: bool) -> None:
    """List the methods."""
    if not json_:
        out.print(methods_table(METHODS))
        out.print("fedstrata explain METHOD tells more about one.")
        return
    rows = {
        n: dict(zip(("adds", "paper"), described(m), strict=True)) | {"needs": sorted(m().needs)}
        for n, m in METHODS.items()
    }
    typer.echo(json.dumps(rows))


def explain(method: str, model: str, json_: bool) -> None:
    """Show what a method is made of, what it costs, and where its sources disagree."""
    e = explained(method, model)
    if not json_:
        show_explanation(out, e)
        return
    told = {"method": method, "recipe": e.recipe.to_dict(), "cost": asdict(e.cost)}
    told |= {"decisions": [asdict(d) for d in e.decisions], "references": e.references}
    typer.echo(json.dumps(told))


def cite(run: str) -> None:
    """Print the BibTeX of the papers behind a run folder or a method, and of fedstrata."""
    typer.echo(f"{cited(_recipe_of(run))}\n\n{OWN}")


def _recipe_of(run: str) -> Recipe:
    """Of a run folder, or else of a text."""
    if Path(run).is_dir():
        return read_recipe(run)
    if "/" in run or os.sep in run:
        raise DataError(f"there is no folder {run}; give a run folder, or a method, e.g. fedlws")
    return parse_recipe(run)
