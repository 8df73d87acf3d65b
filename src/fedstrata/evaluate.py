"""How good a model is: loss and metrics on a data set, and on every client's own data."""

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
import torch
from torch import Tensor

from fedstrata.layout import Arrays
from fedstrata.task import Task

EXAMPLES_AT_ONCE = 2048

Sets = Mapping[str, tuple[Tensor, Tensor]]
"""Examples and targets by name: train, val, test."""


def score(task: Task, w: Tensor, buffers: Arrays, x: Tensor, y: Tensor) -> Arrays:
    """The loss and every metric of each example, [n] each."""
    found: list[Arrays] = []
    with torch.no_grad():
        for a in range(0, len(x), EXAMPLES_AT_ONCE):
            outputs = task.scored(w, buffers, x[a : a + EXAMPLES_AT_ONCE])
            target = y[a : a + EXAMPLES_AT_ONCE]
            metrics = {n: f(outputs, target).reshape(-1) for n, f in task.metrics.items()}
            found.append({"loss": task.losses(outputs, target)} | metrics)
    return {n: torch.cat([f[n] for f in found]) for n in found[0]}


def summary(scores: Arrays) -> dict[str, float]:
    """Their means."""
    return {n: float(v.double().mean()) for n, v in scores.items()}


def client_scores(scores: Arrays, rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The means over each client's own rows, [N] each; clients without data are NaN."""
    sizes = np.array([len(r) for r in rows])
    owner = np.repeat(np.arange(len(rows)), sizes)
    order = np.concatenate(rows)
    with np.errstate(invalid="ignore"):
        return {
            n: np.bincount(owner, v.double().cpu().numpy()[order], len(rows)) / sizes for n, v in scores.items()
        }  # fmt: skip


def fairness(values: np.ndarray, best: str) -> dict[str, float]:
    """Mean over clients, mean of the worst tenth of them (at least one), and standard deviation."""
    values = np.sort(values[~np.isnan(values)])
    tenth = ceil(len(values) / 10)
    worst = values[:tenth] if best == "high" else values[-tenth:]
    return {"mean": float(values.mean()), "worst10": float(worst.mean()), "std": float(values.std())}
