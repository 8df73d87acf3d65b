"""Tables for the terminal."""

from collections.abc import Callable, Mapping
from math import nan
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedstrata.core import Recipe

COLUMNS = "test", "val", "train", "clients", "worst 10 %", "spread"
"""Of a table of runs, before the losses."""


def runs_table(finals: Mapping[str, Mapping[str, Any]], title: str | None = None) -> Table:
    """The last round of some runs side by side: accuracy on every set and over the clients, and the loss."""
    table = Table(title=_title(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", overflow="fold")  # where it is too wide, the name is broken and no number is cut
    rows = {name: _cells(final) for name, final in finals.items()}
    found = dict.fromkeys(c for cells in rows.values() for c in cells)
    columns = [c for c in COLUMNS if c in found] + [c for c in found if c not in COLUMNS]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, cells in rows.items():
        table.add_row(name, *(cells.get(c, "") for c in columns))  # one may not have looked at all sets
    return table


def split_table(facts: Mapping[str, Any], title: str | None = None) -> Table:
    """What `describe` said of a split."""
    table = Table(title=_title(title), title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 2))
    rows = {
        "clients": f"{facts['clients']:,}",
        "examples": f"{facts['examples']:,}" + (f", {facts['left_out']:,} left out" if facts["left_out"] else ""),
        "sizes": f"{facts['smallest']:,} to {facts['largest']:,}, median {facts['median']:,.0f}",
    }
    if "classes" in facts:
        classes = facts["classes"]
        rows["classes of a client"] = f"{classes['min']} to {classes['max']}, median {classes['median']:.0f}"
        rows["effective classes"] = f"{facts['effective_classes']:.2f} (mean of e^entropy)"
        rows["label entropy"] = f"{facts['label_entropy']:.2f} nats (mean)"
        rows["distance to the whole"] = f"{facts['label_distance']:.2f} (mean total variation of labels)"
    for what, value in rows.items():
        table.add_row(what, value)
    return table


def methods_table(methods: Mapping[str, Callable[..., Recipe]]) -> Table:
    """Name, paper, what it adds, what it needs."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("method", no_wrap=True)
    table.add_column("what it adds")
    table.add_column("paper", max_width=16)
    table.add_column("needs", max_width=9)
    for name, make in methods.items():
        adds, paper = described(make)
        needs = ", ".join(n.replace("_", " ") for n in sorted(make().needs))
        table.add_row(name, adds, paper, needs or "-")
    return table


def described(make: Callable[..., Recipe]) -> tuple[str, str]:
    """A method's docstring: (what it adds, the paper)."""
    adds, _, paper = (make.__doc__ or "").partition("\n")
    return adds.strip(), paper.strip()


def _cells(final: Mapping[str, Any]) -> dict[str, str]:
    """Rates as percentages; for a regression there are only losses."""
    sets = [where for where in ("test", "val", "train") if where in final]
    watched = "accuracy" if any("accuracy" in final[where] for where in sets) else "loss"
    cells = {where: _text(watched, final[where][watched]) for where in sets}
    clients = {"clients": "mean", "worst 10 %": "worst10", "spread": "std"}
    if "clients" in final:
        cells |= {title: _text(watched, final["clients"][key]) for title, key in clients.items()}
    return cells | ({f"{sets[0]} loss": _text("loss", final[sets[0]]["loss"])} if watched != "loss" else {})


def _text(measure: str, value: float | None) -> str:
    value = nan if value is None else value  # as a run folder has it
    return f"{100 * value:.1f} %" if measure == "accuracy" else f"{value:.4f}"


def _title(text: str | None) -> Text | None:
    """As it is: a file of the user's may have square brackets in its name."""
    return Text(text, style="bold") if text is not None else None
