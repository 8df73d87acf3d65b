"""Tables of the page: what `compare` found, the groups of runs, every run."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedstrata.report.folders import Group, RunFolder, uncounted
from fedstrata.report.markup import Cell, table
from fedstrata.report.series import SETS, mean_band, measures, over_rounds

CLIENTS = {"mean": "clients", "worst10": "worst 10 %", "std": "spread"}
"""What is told of the clients' own scores, and how it is called."""


def watched(groups: Sequence[Group]) -> str:
    """What scores are told by: accuracy, or the loss where there is none."""
    return "accuracy" if any("accuracy" in measures(groups, where) for where in SETS) else "loss"


def main_set(groups: Sequence[Group]) -> str:
    """The set that decides: test, or else val, or else train."""
    return next((where for where in SETS if measures(groups, where)), "test")


def comparison_table(said: Mapping[str, Any]) -> str:
    """The table of compare.json, and what it says of every method."""
    columns = said["columns"]
    against = any(isinstance(row.get("against_first"), Mapping) for row in said["rows"])
    head = ["method", *(c["title"] for c in columns), *(["points above the first", "p", "verdict"] if against else [])]
    best = {c["key"]: _best_of(said["rows"], c) for c in columns}
    rows = [
        [Cell.text(row["method"]), *(_compared(row.get(c["key"]), c["form"], best[c["key"]]) for c in columns)]
        + (_against(row.get("against_first")) if against else [])
        for row in said["rows"]
    ]
    words = "".join(f"<li>{escape(w)}</li>" for w in said.get("words", []))
    return table(head, rows) + (f'<ul class="words">{words}</ul>' if words else "")


def groups_table(groups: Sequence[Group]) -> str:
    """A row for each group: the last round's scores, means over its runs with their 95 % intervals."""
    kind, first = watched(groups), main_set(groups)
    form = "percent" if kind == "accuracy" else "number"
    scores = [(where, where, kind, form) for where in SETS if measures(groups, where)]
    scores += [("clients", title, key, form) for key, title in CLIENTS.items() if measures(groups, "clients")]
    scores += [(first, f"{first} loss", "loss", "number")] if kind == "accuracy" else []
    head = ["method", *(t for _, t, _, _ in scores), "best", "s a round", "rounds", "seeds", "dropped"]
    rows = []
    for group in groups:
        cells = [Cell.text(group.name)]
        cells += [_over_runs([r.final.get(w, {}).get(m) for r in group.runs], f) for w, _, m, f in scores]
        cells += [_best(group, first, kind, form), _over_runs(list(map(seconds_a_round, group.runs)), "seconds", False)]
        rows.append([*cells, _rounds(group.runs), _whole(len(group.runs)), _whole(sum(map(dropped, group.runs)))])
    return table(head, rows)


def runs_table(groups: Sequence[Group]) -> str:
    """A row for each run."""
    kind, first = watched(groups), main_set(groups)
    form = "percent" if kind == "accuracy" else "number"
    head = ["method", "folder", "seed", "rounds", f"{first} {kind}", f"{first} loss", "seconds", "dropped"]
    rows = []
    for name, run in [(group.name, run) for group in groups for run in group.runs]:
        scores = run.final.get(first, {})
        cells = [Cell.text(name), Cell(f"<code>{escape(str(run.path))}</code>"), _whole(run.seed)]
        cells += [_rounds([run]), Cell.number(scores.get(kind), form), Cell.number(scores.get("loss"))]
        rows.append([*cells, Cell.number(sum(r["seconds"] for r in run.rounds), "seconds"), _whole(dropped(run))])
    return table(head, rows, numeric_from=2)


def rounds_of(run: RunFolder) -> int:
    """Finished rounds; what is done once at the end is none."""
    return sum("finish" not in line for line in run.rounds)


def dropped(run: RunFolder) -> int:
    """Replies that did not count."""
    return sum(len(uncounted(line)) for line in run.rounds)


def seconds_a_round(run: RunFolder) -> float:
    """On average."""
    return sum(line["seconds"] for line in run.rounds) / len(run.rounds)


def _over_runs(values: Sequence[float | None], form: str, interval: bool = True) -> Cell:
    there = [v for v in values if v is not None]
    if not there:
        return Cell.number(None)
    mean, low, high = mean_band(there, form == "percent")
    return Cell.number(mean, form, *((low, high) if interval else ()))


def _best(group: Group, where: str, kind: str, form: str) -> Cell:
    """The best round of the mean over runs."""
    means = over_rounds(group.runs, where, kind).mean
    return Cell.number((max if kind == "accuracy" else min)(means, default=None), form)


def _rounds(runs: Sequence[RunFolder]) -> Cell:
    """How many rounds are done, and of how many where a run is not at its end."""
    done, planned = min(map(rounds_of, runs)), max(int(run.settings.get("rounds", 0)) for run in runs)
    return Cell(f"{done:,} of {planned:,}", done) if done < planned else _whole(done)


def _whole(value: int) -> Cell:
    return Cell.number(value, "whole")


def _best_of(rows: Sequence[Mapping[str, Any]], column: Mapping[str, Any]) -> float | None:
    """The best mean of a column; none where all are alike."""
    means = [m for row in rows if (m := (row.get(column["key"]) or {}).get("mean")) is not None]
    return (max if column["better"] == "high" else min)(means) if len(set(means)) > 1 else None


def _compared(said: Any, form: str, best: float | None) -> Cell:
    """A column's number of a method; of rounds to a target that some seeds never reach, how many do."""
    if not isinstance(said, Mapping):
        return Cell.number(None)
    mean, values = said.get("mean"), said.get("values", [])
    if mean is None and form == "rounds" and values:
        return Cell(f'<span class="none">{sum(v is not None for v in values)} of {len(values)} do</span>')
    low, high = said.get("low"), said.get("high")
    if form == "percent" and low is not None and high is not None:
        low, high = max(0.0, low), min(1.0, high)
    cell = Cell.number(mean, form, low, high)
    return Cell(f"<b>{cell.html}</b>", mean) if mean is not None and mean == best else cell


def _against(said: Any) -> list[Cell]:
    """Difference, p and verdict of a comparison with the first method."""
    if not isinstance(said, Mapping):
        return [Cell.number(None)] * 3
    difference = Cell.number(said.get("difference"), "points", said.get("low"), said.get("high"))
    verdict = said.get("verdict")
    badge = f'<span class="badge {escape(str(verdict))}">{escape(str(verdict))}</span>' if verdict else "\u2013"
    return [difference, Cell.number(said.get("p")), Cell(badge)]
