"""What a run came to: its rounds as the few numbers that runs are compared by."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import numpy as np

from fedstrata.cost import CostCard, cost_card
from fedstrata.data import Dataset
from fedstrata.experiment import Experiment
from fedstrata.task import Task, buffers_of

TAIL = 10
"""Evaluated rounds at the end that are averaged, but no more than the second half of a run."""

Form = Literal["percent", "number", "seconds", "bytes", "rounds"]


@dataclass(frozen=True)
class Column:
    """One thing that is measured of every run."""

    key: str
    title: str
    better: Literal["high", "low"]
    form: Form


def columns(target: float | None, tails: Collection[int] = (TAIL,)) -> list[Column]:
    """What runs are compared by, in the order of the table; `tails` is how many rounds are the end of a run."""
    late = "last rounds" if len(set(tails)) > 1 else f"last {next(iter(tails))}"
    goal = [Column("rounds", f"rounds to {100 * target:.1f} %", "low", "rounds")] if target is not None else []
    return [
        Column("last", "accuracy, last round", "high", "percent"),
        Column("best", "accuracy, best round", "high", "percent"),
        Column("tail", f"accuracy, mean of the {late}", "high", "percent"),
        *goal,
        Column("worst10", "worst 10 % of clients", "high", "percent"),
        Column("oscillation", f"oscillation, {late}", "low", "percent"),
        Column("bytes", "sent", "low", "bytes"),
        Column("seconds", "seconds", "low", "seconds"),
    ]


def measured(rounds: Sequence[Mapping[str, Any]], card: CostCard) -> dict[str, float | None]:
    """The numbers of one run, by column, but for the rounds to a target.

    What a recipe does once, at the end, makes another model of the last one: that is the one handed out, and so the
    last. It is no round, and belongs to no mean of rounds.
    """
    scored = curve(rounds)
    told = np.array([a for _, a in scored])
    late = told[-tail_length(len(told)) :]
    finished = [r["test"]["accuracy"] for r in rounds if r.get("finish")]
    clients = [r["clients"]["worst10"] for r in rounds if "clients" in r]
    return {
        "last": finished[-1] if finished else float(told[-1]),
        "best": float(max([*told, *finished])),
        "tail": float(late.mean()),
        "worst10": clients[-1] if clients else None,
        "oscillation": float(late.std()),
        "bytes": float(sum((card.once if r.get("finish") else card.down + card.up) * len(r["cohort"]) for r in rounds)),
        "seconds": float(sum(r["seconds"] for r in rounds)),
    }


def judged_by(runs: Iterable[Sequence[Mapping[str, Any]]]) -> Literal["last", "tail"]:
    """What methods are tested on: the mean of the last rounds, or the last alone where any run does something after it.

    A model that is there once has no such mean, and to hold it against those of others would count how they rise.
    """
    return "last" if any(line.get("finish") for rounds in runs for line in rounds) else "tail"


def curve(rounds: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """(how many rounds, the test accuracy after them) wherever a round was evaluated."""
    return [(r["round"] + 1, r["test"]["accuracy"]) for r in rounds if "test" in r and not r.get("finish")]


def tail_length(count: int) -> int:
    """How many of so many evaluated rounds are the end of a run: ten, or the second half of fewer than twenty."""
    return min(TAIL, ceil(count / 2))


def rounds_to(rounds: Sequence[Mapping[str, Any]], target: float) -> int | None:
    """The rounds it took until the test accuracy was at the target; None where it never was."""
    return next((n for n, a in curve(rounds) if a >= target), None)


def card_of(exp: Experiment, data: Dataset) -> CostCard:
    """What one client and round of an experiment send."""
    network, _ = exp.recipe.adapt(exp.network(data), exp.training, exp.seed)
    return cost_card(exp.recipe, Task.of(network), buffers_of(network))
