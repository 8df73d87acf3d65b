"""What a comparison says in sentences, and as a table."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

RARE = 0.05
"""A difference is real where chance alone does as much in fewer than one of twenty comparisons."""

Verdict = Literal["real", "noise"]

SHORT: dict[str, str] = {"last": "last", "best": "best", "worst10": "worst\n10 %", "oscillation": "swing"}
SHORT |= {"bytes": "MB\nsent", "seconds": "time,\ns"}
"""What columns are called in the terminal, where ten of them fit beside each other."""


WHEN = {"tail": "its last rounds", "last": "the end"}
"""What a column is called in a sentence about what a method reaches."""


def verdict(p: float | None) -> Verdict | None:
    """Of a corrected p-value."""
    return None if p is None else "real" if p < RARE else "noise"


def words(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each method: the first one's accuracy, and how each other differs from it."""
    first, *others = rows
    return [_of_first(first), *(_of_other(row, first["method"]) for row in others)]


def _of_first(row: Mapping[str, Any]) -> str:
    judged = row[row["by"]]
    reached = f"{row['method']} reaches {_percent(judged['mean'])} in {WHEN[row['by']]}"
    if judged["low"] is None:
        return f"{reached}, with one seed."
    return f"{reached} ({100 * judged['low']:.1f} to {_percent(judged['high'])}, {len(judged['values'])} seeds)."


def _of_other(row: Mapping[str, Any], first: str) -> str:
    name, found, seeds = row["method"], row["against_first"], len(row[row["by"]]["values"])
    points = 100 * found["difference"]
    side = f"{abs(points):.2f} points {'above' if points > 0 else 'below'} {first}"
    if found["p"] is None:
        return f"{name} is {side}, with one seed: nothing can be tested, give 3 seeds or more."
    if found["difference"] == found["low"] == found["high"] == 0:
        return f"{name} does exactly as {first} with every seed: no real difference."
    between = f"{100 * found['low']:+.2f} to {100 * found['high']:+.2f}, {seeds} seeds, p = {found['p']:.2g}"
    what = "a real difference" if found["verdict"] == "real" else "noise, no real difference"
    return f"{name} is {side} ({between}): {what}."


def comparison_table(columns: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """A row a method: means with half the width of their 95 % interval; the best of each column in bold."""
    heading = Text(f"{title}: accuracy in %, means ± half of the 95 % interval", style="bold")
    table = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", min_width=10, overflow="fold")
    for column in columns:
        table.add_column(SHORT.get(column["key"]) or _short(column["title"]), justify="right")
    if len(rows) > 1:
        table.add_column("above\nfirst", justify="right")
    best = {c["key"]: _best([row[c["key"]]["mean"] for row in rows], c["better"]) for c in columns}
    for i, row in enumerate(rows):
        cells = [_cell(row[c["key"]], c["form"], i in best[c["key"]]) for c in columns]
        table.add_row(Text(row["method"]), *cells, *([_against(row["against_first"])] if len(rows) > 1 else []))
    return table


def _short(title: str) -> str:
    """A column's heading in few letters: of a mean, over what; of rounds to a target, in three lines."""
    return title.rpartition("mean of the ")[2].replace("last ", "last\n").replace(" to ", "\nto\n")


def _cell(value: Mapping[str, Any], form: str, best: bool) -> Text:
    """The mean and half its interval in the column's unit; for a target, how many seeds reach it where some do not."""
    values = value["values"]
    if value["mean"] is None:
        return Text(f"{sum(v is not None for v in values)} of\n{len(values)} do" if form == "rounds" else "-")
    scale = {"percent": 100.0, "bytes": 1e-6}.get(form, 1.0)
    text = f"{scale * value['mean']:.1f}"
    if value["low"] is not None and value["high"] > value["low"]:
        text += f"\n±{scale * (value['high'] - value['low']) / 2:.1f}"
    return Text(text, style="bold" if best else "")


def _best(means: Sequence[float | None], better: str) -> set[int]:
    """Which are best; none where all are alike."""
    known = {i: m for i, m in enumerate(means) if m is not None}
    if len(set(known.values())) < 2:
        return set()
    top = (max if better == "high" else min)(known.values())
    return {i for i, m in known.items() if m == top}


def _against(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    points = f"{100 * found['difference']:+.2f}"
    return points if found["p"] is None else f"{points}\n{found['verdict']}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
