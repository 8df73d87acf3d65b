"""Numbers over the rounds, and what seeds make of them: means with 95 % bands."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np

from fedstrata.report.folders import Group, RunFolder

SETS = "test", "val", "train"


@dataclass(frozen=True)
class Series:
    """A mean over runs in every round that was evaluated, and the band around it where there are several runs."""

    rounds: list[int]  # from 1 on
    mean: list[float]
    low: list[float]
    high: list[float]
    runs: int

    @property
    def banded(self) -> bool:
        """Whether there is a band."""
        return any(low < high for low, high in zip(self.low, self.high, strict=True))


def over_rounds(runs: Sequence[RunFolder], where: str, measure: str) -> Series:
    """A measure on a set, `test` or `clients` say, over the rounds; numbers that are not finite are left out."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for line in run.rounds:
            value = line.get(where, {}).get(measure)
            if value is not None and isfinite(value):
                found.setdefault(line["round"] + 1, []).append(value)
    rounds = sorted(found)
    rate = measure == "accuracy" or (where == "clients" and any("accuracy" in r.final.get("train", {}) for r in runs))
    bands = [mean_band(found[r], rate) for r in rounds]
    mean, low, high = (list(column) for column in zip(*bands, strict=True)) if bands else ([], [], [])
    return Series(rounds, mean, low, high, len(runs))


def mean_band(values: Iterable[float], rate: bool = False) -> tuple[float, float, float]:
    """(the mean, the ends of its 95 % interval by Student's t); of one value, the value alone.

    The interval of what is never below 0 does not go there, and that of a rate not above 1.
    """
    from scipy.special import stdtrit

    given = np.array(list(values), dtype=np.float64)
    mean = float(given.mean())
    if len(given) < 2:
        return mean, mean, mean
    half = float(stdtrit(len(given) - 1, 0.975)) * float(given.std(ddof=1)) / sqrt(len(given))
    low = mean - half if given.min() < 0 else max(0.0, mean - half)
    return mean, low, min(1.0, mean + half) if rate else mean + half


def measures(groups: Sequence[Group], where: str) -> list[str]:
    """What was measured on a set by any run: accuracy first, the loss last."""
    found = {m: None for g in groups for r in g.runs for line in r.rounds for m in line.get(where, {})}
    return sorted(found, key=lambda m: (m != "accuracy", m == "loss"))
