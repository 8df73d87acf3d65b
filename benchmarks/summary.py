"""From runs to figures: medians, quartiles and ratios."""

from statistics import median

import numpy as np

from benchmarks.registry import OURS

Spread = dict[str, float]
"""Median and quartiles."""


def spread(values: list[float]) -> Spread:
    """Median, lower and upper quartile."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {"median": float(middle), "low": float(low), "high": float(high)}


def summary(runs: list[dict]) -> dict[str, dict]:
    """Of each contender: seconds of a round, of its two halves, processor seconds, memory, ratios with ours."""
    good: dict[str, list[dict]] = {}
    for line in runs:
        if "why_not" not in line and not line.get("disturbed"):
            good.setdefault(line["contender"], []).append(line)
    found = {name: _one(lines) for name, lines in good.items()}
    for name, lines in good.items():
        if OURS in good and name != OURS:
            found[name]["ours_over_it"] = ratio(good[OURS], lines, "seconds")
            found[name]["ours_over_it_training"] = ratio(good[OURS], lines, "train_seconds")
    return found


def ratio(ours: list[dict], its: list[dict], of: str) -> Spread:
    """Our seconds over its seconds, in each repetition by itself: what slows the machine then slows both."""
    mine = {line["repetition"]: median(line[of]) for line in ours}
    each = [mine[x["repetition"]] / median(x[of]) for x in its if x["repetition"] in mine and median(x[of]) > 0]
    return spread(each or [float("nan")])


def _one(lines: list[dict]) -> dict:
    def every(of: str) -> list[float]:
        return [s for line in lines for s in line[of]]

    return {
        "seconds": spread(every("seconds")),
        "train_seconds": spread(every("train_seconds")),
        "evaluate_seconds": spread(every("evaluate_seconds")),
        "cpu_seconds": spread([line["cpu_seconds"] for line in lines]),
        "peak_mb": max(line["peak_mb"] for line in lines),
        "first_seconds": median(line["first_seconds"] for line in lines),
        "foreign": float(np.mean([line["foreign"] for line in lines])),
        "repetitions": len(lines),
    }
