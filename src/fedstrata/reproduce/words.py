"""A table with the published numbers beside ours, and its verdicts, as Markdown."""

from collections.abc import Sequence

import numpy as np

from fedstrata.lab.stats import Interval, interval
from fedstrata.reproduce.metrics import title
from fedstrata.reproduce.plan import Reproduction
from fedstrata.reproduce.results import Result
from fedstrata.reproduce.verdict import Finding, never_reached, numbers

WIDE = 4
"""Columns from which on a table is turned, so that pages need not be wide."""


def table(made: Reproduction, results: Sequence[Result], metric: str | None = None) -> str:
    """Each cell: published / ours, with half the 95 % interval and the number of seeds."""
    found, several = numbers(made, results, metric), (metric or made.metric) != made.metric
    printed = {} if several else {(c.row, c.column): c.published for c in made.cells}
    exists = {(c.row, c.column) for c in made.cells}
    turned = len(made.columns) > WIDE and len(made.rows) <= 2 * WIDE

    def cell(row: str, column: str) -> str:
        if (row, column) not in exists:
            return ""
        mine = list(found.get((row, column), {}).values())
        if mine and never_reached(metric or made.metric_of(row), mine, results):
            ours = f"never ({len(mine)})"
        else:
            ours = _ours(interval(mine), len(mine)) if mine else "not run"
        number = printed.get((row, column))
        return ours if number is None else f"{_short(number)} / {ours}"

    across, down = (made.rows, made.columns) if turned else (made.columns, made.rows)
    head = ["| | " + " | ".join(c or "all" for c in across) + " |", "|---" * (len(across) + 1) + "|"]
    body = [[cell(a, d) if turned else cell(d, a) for a in across] for d in down]
    return "\n".join(
        head + [f"| {d or 'all'} | " + " | ".join(line) + " |" for d, line in zip(down, body, strict=True)]
    )


def caption(made: Reproduction, metric: str | None = None) -> str:
    """What the numbers of the table are."""
    alike = metric is not None or {made.metric_of(row) for row in made.rows} == {made.metric}  # or the rows say it
    said = f": {title(metric or made.metric, made.target)}" if alike else ""
    any_printed = metric is None and any(c.published is not None for c in made.cells)
    return f"{'Published / ours' if any_printed else 'Ours'} (seeds){said}."


def findings_table(findings: Sequence[Finding]) -> str:
    """One line a claim and column."""
    lines = ["| claim | where | published | ours | verdict |", "|---|---|---:|---:|---|"]
    for f in findings:
        printed = "" if f.published is None else _signed(f, f.published)
        ours = "" if f.ours is None else f"{_ours(f.ours, f.seeds, signed=difference(f))}"
        ours = ours if f.reached else f"neither gets there ({f.seeds})"
        lines.append(f"| {f.claim.says} | {f.column or 'all'} | {printed} | {ours} | {f.verdict} |")
    return "\n".join(lines)


def made_on(made: Reproduction, results: Sequence[Result]) -> str:
    """How many runs there are, of how many rounds, and on what they were made."""
    if not results:
        return "Not run yet."
    runs = {(r.fingerprint, r.seed): r for r in results}.values()
    columns: dict[str, dict[str, None]] = {}
    for r in runs:
        length = f"{r.rounds} rounds " if r.rounds else ""
        columns.setdefault(f"{length}on {_machine(r)}", {})[r.column] = None
    seconds = sum(float(r.made.get("seconds", 0)) for r in runs)
    every = f"{counted(made, results)} runs".capitalize()
    alone = len(columns) == 1
    said = "; ".join(how if alone else f"{how} ({', '.join(cs)})" for how, cs in columns.items())
    return f"{every}, {'each ' if len(runs) > 1 else ''}{said}; {seconds / 60:.0f} minutes in all."


def counted(made: Reproduction, results: Sequence[Result]) -> str:
    """How many runs there are of how many: "3 of 5"; rows may share one."""
    there = len({(r.fingerprint, r.seed) for r in results if r.seed < made.seeds})
    wanted = len({c.fingerprint for c in made.cells}) * made.seeds
    return f"{there} of {wanted}" if there < wanted else f"all {wanted}"


def _machine(result: Result) -> str:
    return " ".join(str(result.made[k]) for k in ("on", "precision") if k in result.made)


def difference(f: Finding) -> bool:
    """Whether a claim is about two rows, and its number the difference of theirs."""
    return f.claim.over is not None or f.claim.like is not None


def _signed(f: Finding, number: float) -> str:
    return f"{number:+.2f}" if difference(f) else _short(number)


def _short(number: float) -> str:
    return f"{number:.3g}" if abs(number) < 1 else f"{number:.2f}".rstrip("0").rstrip(".")


def _ours(found: Interval, count: int, signed: bool = False) -> str:
    short = f"{found.mean:.3g}" if abs(found.mean) < 1 else f"{found.mean:.2f}"
    mean = _rounded(found.mean, sign=True) if signed else short
    half = "" if found.low is None else f" ± {_rounded(found.mean - found.low)}"
    return f"{mean}{half} ({count})"


def _rounded(number: float, sign: bool = False) -> str:
    """To hundredths; a smaller number to its first digit, and what is nothing but rounding to zero."""
    if abs(number) < 1e-9:
        number = 0.0
    if number and abs(number) < 0.01:
        return np.format_float_positional(number, 1, fractional=False, trim="-", sign=sign)
    return f"{number:{'+' if sign else ''}.2f}"
