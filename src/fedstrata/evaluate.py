"""How good a model is: loss and metrics on a data set, and on every client's own data."""

from collections.abc import Mapping
from math import ceil

import numpy as np
import torch
from torch import Tensor

from fedstrata.clients import Rows
from fedstrata.closed import compiled_scores, scores_compiled
from fedstrata.layout import Arrays
from fedstrata.task import Task
from fedstrata.threads import spread, threads

EXAMPLES_AT_ONCE, IMAGES_AT_ONCE = 2048, 256
"""Examples in one pass: of images that are convolved fewer, as each takes some megabyte on its way."""

Sets = Mapping[str, tuple[Tensor, Tensor]]
"""Examples and targets by name: train, val, test."""


def score(task: Task, w: Tensor, buffers: Arrays, x: Tensor, y: Tensor) -> Arrays:
    """The loss and every metric of each example, [n] each.

    Several threads score a piece each, on one thread of torch's: no operation waits for another thread.
    """
    if scores_compiled(task) and x.is_contiguous():
        return compiled_scores(task, w, x, y)

    size = IMAGES_AT_ONCE if task.channels_last else EXAMPLES_AT_ONCE

    def piece(a: int) -> Arrays:
        with torch.no_grad():
            made, target = outputs(x[a : a + size]), y[a : a + size]
            metrics = {n: f(made, target).reshape(-1) for n, f in task.metrics.items()}
            return {"loss": task.losses(made, target)} | metrics

    pieces = range(0, len(x), size)
    count = min(torch.get_num_threads(), len(pieces)) if x.device.type == "cpu" else 1
    with task.scoring(w, buffers) as outputs, threads(1 if count > 1 else torch.get_num_threads()):
        found = spread(piece, pieces, count)
    return {n: torch.cat([f[n] for f in found]) for n in found[0]}


def summary(scores: Arrays) -> dict[str, float]:
    """Their means."""
    return {n: float(v.double().mean()) for n, v in scores.items()}


def client_scores(scores: Arrays, rows: Rows) -> dict[str, np.ndarray]:
    """The means over each client's own rows, [N] each; clients without data are NaN."""
    sizes, order = rows.sizes, rows.flat
    owner = np.repeat(np.arange(len(rows)), sizes)
    with np.errstate(invalid="ignore"):
        return {
            n: np.bincount(owner, v.double().cpu().numpy()[order], len(rows)) / sizes for n, v in scores.items()
        }  # fmt: skip


def fairness(values: np.ndarray, best: str) -> dict[str, float]:
    """Mean over clients that have data, mean of the worst tenth of them (at least one), and standard deviation.

    A client whose score is NaN is the worst there is: what it is part of is NaN.
    """
    values = np.sort(values)  # NaN come last
    tenth = ceil(len(values) / 10)
    worst = values[:tenth] if best == "high" and not np.isnan(values[-1]) else values[-tenth:]
    return {"mean": float(values.mean()), "worst10": float(worst.mean()), "std": float(values.std())}
