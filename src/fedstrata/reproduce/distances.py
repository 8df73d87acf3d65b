"""How far clients are apart, in their data and in their updates: FedLWS's Figure 5.

Of three kinds of clients, as many each, the first has the first half of the classes, the second the other half, the
third all; all have as many examples. Data are compared by optimal transport between some examples of each client: the
cost of moving one to another is the square of their distance and that of their classes (Alvarez-Melis & Fusi 2020),
which are Gaussian with independent pixels here. Beside that stands the same less what it costs to move one half of a
client's examples to the other half, which is due to there being few ("beyond chance"). Updates, of one round that each
client begins from the same model, are compared by one minus their cosine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedstrata.clients import Clients, Rows
from fedstrata.data import Dataset
from fedstrata.experiment import Experiment
from fedstrata.lab.jobs import loaded
from fedstrata.reproduce.plan import Cell, Reproduction
from fedstrata.reproduce.results import Result, environment
from fedstrata.rng import rng
from fedstrata.simulate import simulate

MOVED = 300
"""Examples of each client that are moved to others, and to which as many of its own are."""

KINDS = 3
"""Of clients."""


def distances(made: Reproduction, missing: Sequence[tuple[Cell, int]], means: dict[str, Any]) -> Iterator[Result]:
    """Both matrices of every seed, and the mean distances between kinds of clients."""
    for cell, seed in missing:
        began, exp = perf_counter(), replace(cell.experiment(seed), **means)
        data = loaded(exp)
        count = exp.partition.clients  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        rows = dealt(data.train[1].numpy(), data.classes, count, rng(seed, "partition"))
        rows = [r[: max(1, round(exp.train_share * len(r)))] for r in rows]
        values = compared(*data_distances(data, rows), update_distances(exp, data, rows))
        told = environment(exp) | {"seconds": round(perf_counter() - began, 1)}
        yield Result(cell.row, cell.column, seed, made.scale, cell.fingerprint, exp.rounds, {}, values, told)


def dealt(labels: NDArray[Any], classes: int, count: int, draw: np.random.Generator) -> list[NDArray[Any]]:
    """The examples of each client: a third of them have the first classes, a third the others, a third all."""
    group = count // KINDS
    first, second = (draw.permutation(np.flatnonzero(half)) for half in (labels < classes / 2, labels >= classes / 2))
    size = 2 * min(len(first), len(second)) // (KINDS * group)
    own = [half[: group * size].reshape(group, size) for half in (first, second)]
    rest = [half[group * size : group * size + group * (size // 2)].reshape(group, -1) for half in (first, second)]
    return [*own[0], *own[1], *draw.permuted(np.concatenate(rest, 1), axis=1)]


def data_distances(data: Dataset, rows: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """[K, K]: the root of the mean cost of moving the examples of one client to those of another; and beyond chance."""
    from scipy.optimize import linear_sum_assignment

    x, y = data.train[0].double().flatten(1), data.train[1]
    moments = torch.stack([torch.cat([x[y == c].mean(0), x[y == c].std(0)]) for c in range(data.classes)])
    between = torch.cdist(moments, moments).square().numpy()

    def moved(a: NDArray[Any], b: NDArray[Any]) -> float:
        cost = torch.cdist(x[a], x[b]).square().numpy() + between[np.ix_(y[a].numpy(), y[b].numpy())]
        return float(cost[linear_sum_assignment(cost)].mean())

    some = [min(MOVED, len(r) // 2) for r in rows]
    chance = [moved(r[:n], r[n : 2 * n]) for r, n in zip(rows, some, strict=True)]
    found, beyond = np.zeros((2, len(rows), len(rows)))
    for i, j in combinations(range(len(rows)), 2):
        cost = moved(rows[i][: some[i]], rows[j][: some[j]])
        found[i, j] = found[j, i] = cost**0.5
        beyond[i, j] = beyond[j, i] = max(0.0, cost - (chance[i] + chance[j]) / 2) ** 0.5
    return found, beyond


def update_distances(exp: Experiment, data: Dataset, rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """[K, K]: one minus the cosine of the updates in the last round; those before it are everybody's together."""
    common: dict[str, Any] = {"training": exp.training, "seed": exp.seed, "device": exp.device, "engine": exp.engine}
    common |= {"precision": exp.precision, "test": tuple(t[:1] for t in data.test), "evaluate_train": False}
    model = exp.network(data)
    if exp.rounds > 1:
        together = Clients(*data.train, Rows(rows))
        model = simulate(exp.recipe, model, together, rounds=exp.rounds - 1, **common).model
    old = _flat(model)
    alone = [[(data.train[0][r], data.train[1][r])] for r in rows]
    moved = torch.stack([_flat(simulate(exp.recipe, model, one, rounds=1, **common).model) - old for one in alone])
    unit = moved / moved.norm(dim=1, keepdim=True)
    return (1 - unit @ unit.T).numpy()


def compared(data: NDArray[Any], beyond: NDArray[Any], updates: NDArray[Any]) -> Mapping[str, Any]:
    """The mean distance of clients with half of the classes to others by what these have, and how the two agree."""
    k = len(data)
    kind = np.arange(k) // (k // KINDS)
    one, other = np.triu_indices(k, 1)
    pairs = {
        "same": (kind[one] == kind[other]) & (kind[one] < KINDS - 1),
        "all": (kind[one] < KINDS - 1) & (kind[other] == KINDS - 1),
        "other": (kind[one] == 0) & (kind[other] == 1),
    }
    both = {"data": data, "updates": updates}
    values = {f"{n} {p}": float(m[one, other][where].mean()) for n, m in both.items() for p, where in pairs.items()}
    for name, found in {"alike": data, "alike beyond chance": beyond}.items():
        values[name] = float(np.corrcoef(found[one, other], updates[one, other])[0, 1])
    return {n: round(v, 5) for n, v in values.items()} | {n: m.round(5).tolist() for n, m in both.items()}


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().double().flatten().cpu() for p in model.parameters()])
