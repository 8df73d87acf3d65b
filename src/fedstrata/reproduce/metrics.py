"""What is read off the curves of a run: the numbers that papers print.

"best" is the best round's test accuracy, "val:last" that of the last round on the validation set; "rounds" counts them
until the target is reached; "values:NAME" is what `extract` took from the notes, averaged over the rounds.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedstrata.errors import SettingError, near

Curve = Sequence[float]

TAIL = 10
"""Rounds at the end, or best ones, that are averaged."""

OF_CURVES: dict[str, Callable[[np.ndarray], float]] = {
    "last": lambda a: float(a[-1]),
    "best": lambda a: float(a.max()),
    "best10": lambda a: float(np.sort(a)[-TAIL:].mean()),
    "tail": lambda a: float(a[-TAIL:].mean()),
    "tail5": lambda a: float(a[-5:].mean()),
    "oscillation": lambda a: float(a[-TAIL:].std()),
}
"""Each in percent of the accuracies of the evaluated rounds."""

TITLES = {
    "last": "accuracy of the last round, %",
    "best": "accuracy of the best round, %",
    "best10": "mean accuracy of the ten best rounds, %",
    "tail": "mean accuracy of the last ten rounds, %",
    "tail5": "mean accuracy of the last five rounds, %",
    "oscillation": "standard deviation of the accuracy over the last ten rounds, points",
    "rounds": "rounds to the target",
    "seconds": "seconds",
    "ratio": "times as long as the first row",
}

LOW = ("oscillation", "rounds", "seconds", "ratio", "loss")
"""Of these, less is better."""


def measure(metric: str, curves: Mapping[str, Curve], values: Mapping[str, Any], target: float | None) -> float | None:
    """The number of one run; None where there is none. A target that was not reached counts as one round more."""
    of, _, what = metric.rpartition(":")
    if of == "values" or what == "seconds":
        found = values.get(what)
        return None if found is None else float(np.mean(found))
    accuracies = np.asarray(curves.get(of or "test", ()), float)
    if not len(accuracies):
        return None
    if what == "rounds":
        assert target is not None
        there = np.flatnonzero(accuracies >= target - 1e-9)
        return float(there[0] + 1 if len(there) else len(accuracies) + 1)
    if what not in OF_CURVES:
        raise SettingError(f"there is no metric {metric!r}; {near(what, [*OF_CURVES, 'rounds', 'seconds'])}")
    return 100 * OF_CURVES[what](accuracies)


def less_is_better(metric: str) -> bool:
    """Whether small numbers are the good ones."""
    return metric.rpartition(":")[2] in LOW


def title(metric: str, target: float | None) -> str:
    """What a metric is called."""
    of, _, what = metric.rpartition(":")
    if what == "rounds" and target is not None:
        return f"rounds until the test accuracy is {100 * target:g} %"
    said = TITLES.get(what, what)
    return f"{of} {said}" if of not in ("", "values") else said
