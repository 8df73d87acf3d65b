"""What became of a paper's claims.

Rows are compared seed by seed, in each column that a claim speaks of. That one row is better than another is

- reproduced, if the 95 % interval of the difference leaves out zero on the claimed side;
- reproduced in direction, if the mean difference is on that side, but the interval holds zero or there is one seed, or
  two to five seeds all differ by the same number: such an interval has no width, and a sign test leaves chance a part;
- not reproduced, otherwise.

That a row is like another, or has the number that was printed, is reproduced if the means are within so many points of
each other; where no tolerance is given, if the printed number lies in our interval. That a number is above another one,
or that a row follows another from column to column (Pearson's correlation is above 0), is judged like "better".
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedstrata.lab.stats import Interval, interval
from fedstrata.reproduce.metrics import less_is_better, measure
from fedstrata.reproduce.plan import Claim, Reproduction, wanted_columns
from fedstrata.reproduce.results import Result

Verdict = Literal["reproduced", "direction reproduced", "not reproduced", "not run"]

Numbers = Mapping[tuple[str, str], Mapping[int, float]]
"""(row, column) -> seed -> number."""


TELLING = 6
"""Seeds that must all differ by the same number before a sign test, 2^(1 - n), is below 5 %."""


@dataclass(frozen=True)
class Finding:
    """A claim in one column."""

    claim: Claim
    column: str
    verdict: Verdict
    ours: Interval | None = None  # the difference, or the number itself
    published: float | None = None
    seeds: int = 0
    reached: bool = True  # somebody did, where rounds to a target are counted


def numbers(made: Reproduction, results: Sequence[Result], metric: str | None = None) -> Numbers:
    """A metric of every run there is."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    own = {row: made.metric_of(row) for row in made.rows}
    for r in results:
        number = measure(metric or own[r.row], r.curves, r.values, made.target)
        if number is not None:
            found.setdefault((r.row, r.column), {})[r.seed] = number
    return found


def judge(made: Reproduction, results: Sequence[Result]) -> list[Finding]:
    """All claims, in all columns they speak of; at the quick scale none that is about a printed number itself."""
    claims = [c for c in made.claims if made.scale == "full" or _is_direction(c)]
    every = [(c, column) for c in claims for column in (wanted_columns(c, made) if c.follows is None else [""])]
    return [
        _judged(made, results, c, column) if c.follows is None else _followed(made, results, c) for c, column in every
    ]


def _is_direction(claim: Claim) -> bool:
    """Whether it compares numbers of our own."""
    return any(v is not None for v in (claim.over, claim.like, claim.above, claim.follows))


def _judged(made: Reproduction, results: Sequence[Result], claim: Claim, column: str) -> Finding:
    metric = claim.metric or made.metric_of(claim.row)
    found = numbers(made, results, claim.metric)
    mine, printed = found.get((claim.row, column), {}), _printed(made, claim, column)
    other = claim.over or claim.like
    theirs = mine if other is None else found.get((other, column), {})
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        return Finding(claim, column, "not run", published=printed)
    ours = interval([mine[s] - theirs[s] if other else mine[s] for s in seeds])
    if claim.above is not None:
        verdict = _better(ours, 1, len(seeds), claim.above)
    elif claim.over is None:
        verdict = _near(ours, 0.0 if claim.like else printed, claim.within)
    else:
        verdict = _better(ours, -1 if less_is_better(metric) else 1, len(seeds))
    late = other is not None and never_reached(metric, [*mine.values(), *theirs.values()], results)
    return Finding(claim, column, verdict, ours, printed, len(seeds), not late)


def never_reached(metric: str, found: Sequence[float], results: Sequence[Result]) -> bool:
    """Whether these are rounds to a target that no run reached."""
    return metric.rpartition(":")[2] == "rounds" and min(found) > max(r.rounds for r in results)


def _printed(made: Reproduction, claim: Claim, column: str) -> float | None:
    """What the paper has for it: a number of the table, or the difference of two."""
    if claim.published is not None or (claim.metric or made.metric_of(claim.row)) != made.metric_of(claim.row):
        return claim.published
    table = {c.row: c.published for c in made.cells if c.column == column}
    mine, other = table.get(claim.row), claim.over or claim.like
    theirs = 0.0 if other is None else table.get(other)
    return None if mine is None or theirs is None else mine - theirs


def _followed(made: Reproduction, results: Sequence[Result], claim: Claim) -> Finding:
    """Pearson's correlation of two rows over the columns that both have, seed by seed."""
    assert claim.follows is not None
    found = numbers(made, results)
    columns = wanted_columns(claim, made)
    pairs = [(found.get((claim.row, c), {}), found.get((claim.follows, c), {})) for c in columns]
    seeds = sorted({s for mine, _ in pairs for s in mine})
    both = {s: [(mine[s], theirs[s]) for mine, theirs in pairs if s in mine and s in theirs] for s in seeds}
    alike = [_correlation(np.array(both[s])) for s in seeds if len(both[s]) > 2]
    if not alike:
        return Finding(claim, "", "not run", published=claim.published)
    ours = interval(alike)
    return Finding(claim, "", _better(ours, 1, len(alike)), ours, claim.published, len(alike))


def _correlation(pairs: np.ndarray) -> float:
    """Pearson's, [n, 2]; zero where one of both never changes."""
    return float(np.corrcoef(pairs.T)[0, 1]) if (np.ptp(pairs, axis=0) > 0).all() else 0.0


def _better(ours: Interval, side: int, seeds: int, than: float = 0.0) -> Verdict:
    edge = ours.low if side > 0 else ours.high
    if edge is not None and side * (edge - than) > 0 and (ours.low != ours.high or seeds >= TELLING):
        return "reproduced"
    return "direction reproduced" if side * (ours.mean - than) > 0 else "not reproduced"


def _near(ours: Interval, aim: float | None, within: float | None) -> Verdict:
    if aim is None:
        return "not run"
    if within is not None:
        return "reproduced" if abs(ours.mean - aim) <= within else "not reproduced"
    inside = ours.low is not None and ours.high is not None and ours.low <= aim <= ours.high
    return "reproduced" if inside else "not reproduced"


def in_short(findings: Sequence[Finding]) -> str:
    """How many findings came out how: "2 reproduced, 1 not reproduced"."""
    counts = Counter(f.verdict for f in findings)
    order: tuple[Verdict, ...] = ("reproduced", "direction reproduced", "not reproduced", "not run")
    return ", ".join(f"{counts[v]} {v}" for v in order if counts[v]) or "nothing claimed"
