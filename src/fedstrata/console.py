"""What a person sees in the terminal: live progress, and a method explained."""

from collections.abc import Callable, Mapping
from inspect import cleandoc
from time import monotonic
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from fedstrata.cost import CostCard
from fedstrata.explain import Explanation
from fedstrata.lab.jobs import Job
from fedstrata.recipes import METHODS
from fedstrata.report.tables import described

out, err = Console(), Console(stderr=True)
"""Where commands tell what came out, and how it goes."""

BESIDE, LEAST = 59, 12
"""Characters that progress takes beside the name of a run, and those that a name has in any case."""

WHOLE = Column(no_wrap=True)
"""Where the terminal is narrow the bar gives way, not what is beside it."""

NEWS = 30.0
"""Seconds after which a log is told again how far it is."""


class Live:
    """Progress that is shown within a block: a line a task, with what is told of it; in a log, a line now and then."""

    def __init__(self, console: Console, *more: ProgressColumn):
        name = Column(no_wrap=True, overflow="ellipsis", max_width=max(LEAST, console.width - BESIDE))
        columns = BarColumn(), MofNCompleteColumn(table_column=WHOLE), TextColumn("{task.fields[told]}")
        self.progress = Progress(TextColumn("{task.description}", table_column=name), *columns, *more, console=console)
        self.last_news = monotonic()

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def say(self, sentence: str) -> None:
        """A sentence above the progress."""
        self.progress.console.print(sentence, highlight=False, markup=False)

    def news(self, *facts: str) -> None:
        """How far it is, where no terminal shows the bars: they are not drawn before the end then."""
        if not self.progress.console.is_terminal and monotonic() - self.last_news >= NEWS:
            self.last_news = monotonic()
            self.say(", ".join(" ".join(f.split()) for f in facts if f))


class Watcher(Live):
    """Live progress of some runs: round, accuracy (or loss), seconds a round, time left."""

    def __init__(self, console: Console, rounds: Mapping[str, int]):
        super().__init__(console, TextColumn("left"), TimeRemainingColumn(table_column=WHOLE))
        self.tasks = {n: self.progress.add_task(n, total=r, start=False, told="") for n, r in rounds.items()}
        self.rounds = rounds

    def of(self, name: str) -> Callable[[dict[str, Any]], None]:
        """Told every round of one run."""
        task = self.tasks[name]
        self.progress.start_task(task)

        def told(line: dict[str, Any]) -> None:
            score, pace = _score(line), f"{line['seconds']:.2f} s a round"
            done = min(line["round"] + 1, self.rounds[name])  # a run that is gone on with does not begin at the first
            self.progress.update(task, completed=done, told=f"{score:17} {pace}")
            for warning in line.get("warnings", []):
                self.say(f"round {line['round']}: {warning}")
            self.news(f"{name}: {done} of {self.rounds[name]} rounds", score, pace)

        return told

    def ended(self, name: str, final: Mapping[str, Any]) -> None:
        """All rounds of a run are there, perhaps since long ago."""
        task = self.tasks[name]
        told = self.progress.tasks[task].fields["told"] or _score(final)
        self.progress.update(task, completed=self.rounds[name], told=told)


class RunsWatcher(Live):
    """Live progress of many runs: all of them in one line, and one for each that is going on."""

    def __init__(self, console: Console, runs: int | None):
        super().__init__(console)
        self.all = self.progress.add_task("runs", total=runs, told="")
        self.going: dict[str, TaskID] = {}
        self.found = 0  # runs that were there already

    def __exit__(self, *error: object) -> None:
        for task in self.going.values():
            self.progress.remove_task(task)
        if self.progress.tasks[0].total is None:  # nobody knew how many there would be
            self.progress.update(self.all, total=self.progress.tasks[0].completed)
        super().__exit__(*error)

    def told(self, job: Job, line: dict[str, Any] | None) -> None:
        """A round of a run; None at its end."""
        if line is None:
            task = self.going.pop(job.name, None)
            self.found += task is None
            if task is not None:
                self.progress.remove_task(task)
            self.progress.advance(self.all)
            return
        if job.name not in self.going:
            self.going[job.name] = self.progress.add_task(f"  {escape(job.name)}", total=job.experiment.rounds, told="")
        score, rounds = _score(line), job.experiment.rounds
        done = min(line["round"] + 1, rounds)  # what is done once, at the end, is no round
        self.progress.update(self.going[job.name], completed=done, told=score)
        ended = f"runs that have ended: {self.progress.tasks[0].completed:.0f}"
        self.news(f"{ended}; {job.name}: {done} of {rounds} rounds", score)

    def expect(self, runs: int) -> None:
        """So many runs are to come."""
        self.progress.update(self.all, total=runs)


def _score(line: Mapping[str, Any]) -> str:
    """The accuracy of a round, or its loss, as far as it was evaluated."""
    seen = line.get("test") or line.get("train") or line.get("val") or {}
    if "accuracy" in seen:
        return f"accuracy {100 * seen['accuracy']:5.1f} %"
    return f"loss {seen['loss']:.4f}" if "loss" in seen else ""


def split_in_words(facts: Mapping[str, Any]) -> str:
    """What `describe` said of a split, as a sentence."""
    sizes = f"{facts['smallest']} to {facts['largest']} of {facts['examples']:,} examples"
    if "effective_classes" not in facts:
        return f"{facts['clients']} clients have {sizes} each."
    return f"{facts['clients']} clients have {sizes} each and {facts['effective_classes']:.1f} classes in effect."


def show_explanation(console: Console, e: Explanation) -> None:
    """A method's parts with their equations, its cost card, and where its sources disagree."""
    console.print(f"{e.text}: {_said_of(e)}\n", highlight=False, markup=False)
    for slot, part in e.recipe.parts().items():
        console.print(f"[bold]{slot.partition('.')[0]}[/]  {part!r}", highlight=False)
        console.print(Padding(Text(cleandoc(type(part).__doc__ or "")), (0, 0, 1, 6)))
    console.print(_cost_table(e.cost, e.model, e.parameters))
    console.print("What leaves a client: " + "; ".join(e.cost.leaves) + ".", highlight=False)
    if e.decisions:
        console.print("\n[bold]Where sources are unclear or disagree[/]")
        rows = Table.grid(padding=(0, 2))
        for decision in e.decisions:
            rows.add_row(f"  {decision.id}", Text(str(decision).replace("`", "")))
        console.print(rows)


def _said_of(e: Explanation) -> str:
    """What each method of a text adds, and its paper; parts speak for themselves."""
    said = [described(METHODS[n]) for n in e.methods] or [("A combination of parts", "")]
    return " ".join(f"{adds.rstrip('.')} ({paper.rstrip('.')})." if paper else f"{adds}." for adds, paper in said)


def _cost_table(card: CostCard, model: str, parameters: int) -> Table:
    table = Table(title=f"Cost, for {model} ({parameters:,} parameters)", title_justify="left", box=None)
    rows = {
        "down to a client, a round": card.down,
        "up from a client, a round": card.up,
        "kept on a client": card.memory,
    } | ({"both ways, once, in the end": card.once} if card.once else {})
    for what, size in rows.items():
        table.add_row(f"  {what}", f"{size:,} bytes", f"{size / card.model:.2f} x the model")
    return table
