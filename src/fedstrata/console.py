"""What a person sees in the terminal: live progress, and a method explained."""

import re
from collections.abc import Callable, Mapping
from inspect import cleandoc
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedstrata.core import Recipe
from fedstrata.cost import CostCard, cost_card
from fedstrata.models import model as make_model
from fedstrata.optim import SGD
from fedstrata.parse import parse_recipe
from fedstrata.recipes import METHODS
from fedstrata.report.tables import described
from fedstrata.task import Task, buffers_of


class Watcher:
    """Live progress of some runs: round, accuracy (or loss), seconds a round, time left."""

    def __init__(self, console: Console, rounds: Mapping[str, int]):
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}")
        self.progress = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console)
        self.tasks = {n: self.progress.add_task(n, total=r, start=False, told="") for n, r in rounds.items()}

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def of(self, name: str) -> Callable[[dict[str, Any]], None]:
        """Told every round of one run."""
        task = self.tasks[name]
        self.progress.start_task(task)

        def told(line: dict[str, Any]) -> None:
            seen = line.get("test") or line.get("train") or {}
            score = (
                f"accuracy {100 * seen['accuracy']:5.1f} %" if "accuracy" in seen else f"loss {seen.get('loss', 0):.4f}"
            )
            self.progress.update(task, advance=1, told=f"{score if seen else '':17} {line['seconds']:.2f} s a round")
            for warning in line.get("warnings", []):
                self.progress.console.print(f"round {line['round']}: {warning}")

        return told


def split_in_words(facts: Mapping[str, Any]) -> str:
    """What `describe` said of a split, as a sentence."""
    sizes = f"{facts['smallest']} to {facts['largest']} of {facts['examples']:,} examples"
    if "effective_classes" not in facts:
        return f"{facts['clients']} clients have {sizes} each."
    return f"{facts['clients']} clients have {sizes} each and {facts['effective_classes']:.1f} classes in effect."


def explain_method(console: Console | None, text: str, model: str) -> tuple[Recipe, CostCard]:
    """A method's parts with their equations, and its cost card; shown on the console if there is one."""
    recipe = parse_recipe(text)
    network, _ = recipe.adapt(make_model(model, (1, 8, 8), 10), SGD(), 0)
    task = Task.of(network)
    recipe.check(frozenset(recipe.needs) - ({"features"} if task.classifier is None else set()))
    card = cost_card(recipe, task, buffers_of(network))
    if console is not None:
        console.print(f"{text}: {_said_of(text)}\n", highlight=False, markup=False)
        for slot, part in recipe.parts().items():
            console.print(f"[bold]{slot.partition('.')[0]}[/]  {part!r}", highlight=False)
            console.print(Padding(Text(cleandoc(type(part).__doc__ or "")), (0, 0, 1, 6)))
        console.print(_cost_table(card, model, task.layout.size))
        console.print("What leaves a client: " + "; ".join(card.leaves) + ".", highlight=False)
    return recipe, card


def _said_of(text: str) -> str:
    """What a text names: each method with its paper; parts speak for themselves."""
    names = [n for n in re.findall(r"[a-z_]+", re.sub(r"\(.*?\)", "", text)) if n in METHODS]
    said = [described(METHODS[n]) for n in names] or [("A combination of parts", "")]
    return " ".join(f"{adds.rstrip('.')} ({paper.rstrip('.')})." if paper else f"{adds}." for adds, paper in said)


def _cost_table(card: CostCard, model: str, parameters: int) -> Table:
    table = Table(title=f"Cost, for {model} ({parameters:,} parameters)", title_justify="left", box=None)
    rows = {
        "down to a client, a round": card.down,
        "up from a client, a round": card.up,
        "kept on a client": card.memory,
    }
    for what, size in rows.items():
        table.add_row(f"  {what}", f"{size:,} bytes", f"{size / card.model:.2f} x the model")
    return table
