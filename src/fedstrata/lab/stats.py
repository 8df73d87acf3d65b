"""Means with their uncertainty, and whether two series of numbers differ. Pure functions of numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

LEVEL = 0.95
"""Of confidence."""

SAME = 1e-12
"""Differences between numbers of order 1 that are rounding and nothing else."""


@dataclass(frozen=True)
class Interval:
    """A mean, and where the true one lies with 95 % confidence; of a single value nobody can tell."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Paired:
    """By how much one series exceeds another, seed by seed, and how often chance alone does as much."""

    difference: float
    low: float | None
    high: float | None
    p: float | None


def interval(values: Sequence[float]) -> Interval:
    """The mean with its confidence interval by Student's t: mean -+ t s / sqrt(n)."""
    given = np.asarray(values, dtype=np.float64)
    mean = float(given.mean())
    if len(given) < 2:
        return Interval(mean, None, None)
    half = _student(len(given) - 1) * float(given.std(ddof=1)) / sqrt(len(given))
    return Interval(mean, mean - half, mean + half)


def paired(values: Sequence[float], others: Sequence[float]) -> Paired:
    """The paired t test of values against others, two-sided; with a single pair there is no p.

    Where all differences are the same number there is no spread for it to go by: p is 1 if they are zero, and else that
    of the sign test, 2^(1 - n).
    """
    from scipy.stats import ttest_rel

    a, b = np.asarray(values, dtype=np.float64), np.asarray(others, dtype=np.float64)
    difference = a - b
    found = interval(difference.tolist())
    if len(difference) < 2:
        return Paired(found.mean, None, None, None)
    if np.abs(difference).max() <= SAME:
        return Paired(0.0, 0.0, 0.0, 1.0)
    constant = np.ptp(difference) <= SAME
    p = 2.0 ** (1 - len(difference)) if constant else float(ttest_rel(a, b).pvalue)
    return Paired(found.mean, found.low, found.high, p)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction of several p-values: the smallest times m, the next times m - 1, ...; never decreasing."""
    adjusted, least = [0.0] * len(p), 0.0
    for rank, i in enumerate(np.argsort(p, kind="stable").tolist()):
        least = max(least, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = least
    return adjusted


def _student(freedom: int) -> float:
    """The quantile of Student's t that leaves half of 5 % above it."""
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom))
