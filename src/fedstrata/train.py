"""K clients' local work, the only training loop of the library: measure, train, report.

Clients are stacked in a leading axis. They are sorted by their number of steps, so that at every step those with data
left are a prefix and the others are not touched at all: not their parameters, momentum, counters or buffers.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves, tree_map

from fedstrata.buffers import BufferPolicy
from fedstrata.clients import Clients, Schedule, all_batches, probe_batches, training_batches
from fedstrata.core import Recipe, State, Turn
from fedstrata.layout import Arrays
from fedstrata.optim import Training
from fedstrata.probes import AFTER, MINI, WHOLE, measure
from fedstrata.rng import seeded, torch_seed
from fedstrata.task import Batch, Task

Given = tuple[State, State, Arrays, Arrays]
"""Briefs, memories, measurements and received buffers."""

EXAMPLES_AT_ONCE = 256
"""Of each client, where all of its data is looked at."""

Watch = Callable[[str], AbstractContextManager[object]]
"""Wraps each stage of the clients' work, by name: how a runtime says where an error happened."""


@dataclass(frozen=True)
class Federation:
    """What a run is about, whoever executes it: the algorithm, the model's task, the data, the local training."""

    recipe: Recipe
    task: Task
    clients: Clients
    training: Training
    seed: int = 0
    buffers: BufferPolicy = "average"


@dataclass(frozen=True)
class Errand:
    """What K clients are sent off with."""

    ids: Sequence[int]
    number: int  # of the round
    start: Tensor  # [P]
    buffers: Arrays  # [K, ...] each: the global ones, or each client's own
    brief: State  # [K, ...] each
    memory: State  # [K, ...] each; also "optimizer" and "buffers" where clients keep those
    stats: Arrays  # [K, ...] what the server knows of them
    probes: frozenset[str]  # what they must still measure


@dataclass(frozen=True)
class Trained:
    """What K clients bring back."""

    delta: Tensor  # [K, P]
    buffers: Arrays  # [K, ...] each
    memory: State
    uploads: State
    stats: Arrays  # [K, ...] each, what they measured and tell


def train(fed: Federation, errand: Errand, watch: Watch = nullcontext) -> Trained:
    """Send K clients through one round."""
    lr, ids = fed.training.rate(errand.number), errand.ids
    with watch("measuring"):
        measured = survey(fed, errand)
    with watch("training"), seeded(torch_seed(fed.seed, "torch", errand.number, ids[0])):
        schedule = training_batches(fed.clients, ids, fed.training, fed.seed, errand.number)
        w, buffers, optimizer = descend(fed, errand, errand.stats | measured, schedule, lr)
    with watch("reporting"):
        measured |= _on_all_data(fed, errand.ids, errand.probes & AFTER.keys(), w, buffers)
        steps = torch.from_numpy(schedule.steps).double().to(w.device)  # of an int, steps * lr would be float32

        def report(w: Tensor, after: Arrays, given: Given, steps: Tensor) -> Any:
            turns = _turns(fed, errand.start, given, lr, steps=steps, trained=after)
            return {n: p.report(w, turns[n]) for n, p in fed.recipe.locals().items()}

        pairs = over_clients(report, w, buffers, _given(fed, errand, errand.stats | measured), steps)
        memory, uploads = ({n: pair[i] for n, pair in pairs.items()} for i in (0, 1))
    told = {n: v for n, v in (measured | {"steps": steps}).items() if n in fed.recipe.told}
    kept = {"optimizer": optimizer} if not fed.training.reset_optimizer else {}
    kept |= {"buffers": buffers} if fed.buffers == "local" else {}
    return Trained(w - errand.start, buffers, memory | kept, uploads, told)


def descend(
    fed: Federation, errand: Errand, stats: Arrays, schedule: Schedule, lr: float
) -> tuple[Tensor, Arrays, Arrays]:
    """The local steps of K clients: (parameters [K, P], buffers, optimiser state)."""
    order = np.argsort(-schedule.steps, kind="stable")
    there = torch.from_numpy(order).to(errand.start.device)
    schedule = schedule.ordered(order)
    given = tree_map(lambda v: v[there], _given(fed, errand, stats))
    w = over_clients(partial(_begin, fed, errand.start, lr), given).clone()
    buffers, optimizer = tree_map(lambda v: v[there], (errand.buffers, _optimizer(fed, errand)))
    draws = order if fed.task.noisy else []
    noise = torch.tensor([torch_seed(fed.seed, "noise", errand.number, errand.ids[i]) for i in draws]).to(w.device)
    direction = partial(_direction, fed, errand.start, lr)
    for step in range(schedule.count.shape[1]):
        active = int((schedule.steps > step).sum())
        head = partial(tree_map, lambda v, a=active: v[:a])
        batch = _gather(fed.clients, *schedule.batch(step, active))
        batch |= {"noise": noise[:active] + step} if fed.task.noisy else {}
        gradient, after = over_clients(direction, w[:active], head(buffers), head(given), batch)
        moved, state = fed.training.update(w[:active], fed.training.clipped(gradient), head(optimizer), lr)
        _write((w, buffers, optimizer), (moved, after, state), active)
    back = torch.from_numpy(np.argsort(order)).to(w.device)
    return tree_map(lambda v: v[back], (w, buffers, optimizer))


def survey(fed: Federation, errand: Errand) -> Arrays:
    """What K clients measure at the model they received, [K, ...] each."""
    start = errand.start.expand(len(errand.ids), -1)
    found = _on_all_data(fed, errand.ids, errand.probes & WHOLE.keys(), start, errand.buffers)
    if mini := errand.probes & MINI.keys():
        schedule = probe_batches(fed.clients, errand.ids, fed.training, fed.seed, errand.number)
        batch = _gather(fed.clients, *schedule.batch(0, len(errand.ids)))
        found |= over_clients(partial(_measured, fed, mini), start, errand.buffers, batch)
    return found


def _on_all_data(fed: Federation, ids: Sequence[int], names: frozenset[str], w: Tensor, buffers: Arrays) -> Arrays:
    """Means over each client's own data, [K, ...] each, at K models [K, P]; a few examples at a time."""
    if not names:
        return {}
    schedule = all_batches(fed.clients, ids, EXAMPLES_AT_ONCE)
    order = np.argsort(-schedule.steps, kind="stable")
    schedule, there = schedule.ordered(order), torch.from_numpy(order).to(w.device)
    given = tree_map(lambda v: v[there], (w, buffers))
    total: Arrays = {}
    for step in range(schedule.count.shape[1]):
        active = int((schedule.steps > step).sum())
        batch = _gather(fed.clients, *schedule.batch(step, active))
        sums = over_clients(partial(_measured, fed, names), *tree_map(lambda v, a=active: v[:a], given), batch)
        for n, v in sums.items():
            total[n] = v.clone() if step == 0 else total[n].index_add(0, torch.arange(active, device=v.device), v)
    count = torch.from_numpy(schedule.count.sum(1)).to(w.device)
    back = torch.from_numpy(np.argsort(order)).to(w.device)
    return {n: (v / count.to(v.dtype).view(-1, *[1] * (v.dim() - 1)))[back] for n, v in total.items()}


def _measured(fed: Federation, names: frozenset[str], w: Tensor, buffers: Arrays, batch: Arrays) -> Arrays:
    return measure(names, fed.task, w, buffers, Batch(**batch))


def over_clients(f: Callable[..., Any], *args: Any) -> Any:
    """f for each of K stacked clients. One client alone is not vmapped: any model works, and it is faster."""
    k = next(v for v in tree_leaves(args)).shape[0]
    if k > 1:
        return vmap(f, randomness="different")(*args)
    return tree_map(lambda v: v[None], f(*tree_map(lambda v: v[0], args)))


def _begin(fed: Federation, start: Tensor, lr: float, given: Given) -> Tensor:
    """Where one client's training starts, [P]."""
    w, turns = start, _turns(fed, start, given, lr)
    for n, part in fed.recipe.locals().items():
        w = part.begin(w, turns[n])
    return w


def _direction(
    fed: Federation, start: Tensor, lr: float, w: Tensor, buffers: Arrays, given: Given, batch: Arrays
) -> tuple[Tensor, Arrays]:
    """One client's gradient, corrections included, and its buffers after the pass."""
    parts = fed.recipe.locals()
    turns = _turns(fed, start, given, lr)
    mask = batch.get("mask")

    def objective(v: Tensor, buffers: Arrays) -> tuple[Tensor, Arrays]:
        outputs, features, after = fed.task.forward(v, buffers, batch["x"], "train", mask, batch.get("noise"))
        for n, part in parts.items():
            outputs = part.outputs(outputs, turns[n])
        seen = Batch(batch["x"], batch["y"], mask, outputs, features)
        loss = seen.mean(fed.task.losses(outputs, seen.y))
        seen = replace(seen, loss=loss)
        for n, part in parts.items():
            loss = loss + part.penalty(v, turns[n], seen)
        return loss, after

    gradient, after = grad(objective, has_aux=True)(w, buffers)
    for n, part in parts.items():
        gradient = part.correct(gradient, w, turns[n])
    return gradient, after


def _given(fed: Federation, errand: Errand, stats: Arrays) -> Given:
    """What the local parts of K clients see: briefs, memories, measurements, received buffers, [K, ...] each."""
    return errand.brief, {n: errand.memory[n] for n in fed.recipe.locals()}, stats, errand.buffers


def _turns(fed: Federation, start: Tensor, given: Given, lr: float, **end: Any) -> dict[str, Turn]:
    """One client's turn as each local part sees it."""
    brief, memory, stats, buffers = given
    common = fed.task, fed.training, start, buffers
    return {n: Turn(*common, brief[n], memory[n], stats, lr, **end) for n in fed.recipe.locals()}


def _optimizer(fed: Federation, errand: Errand) -> Arrays:
    """The optimiser state that K clients begin with, [K, ...] each."""
    if not fed.training.reset_optimizer:
        return errand.memory["optimizer"]
    fresh = fed.training.init(errand.start)
    return {n: v.expand(len(errand.ids), *v.shape) for n, v in fresh.items()}


def _gather(clients: Clients, index: np.ndarray, mask: np.ndarray | None) -> Arrays:
    """The examples of A batches, [A, B, ...]."""
    rows = torch.from_numpy(index).to(clients.x.device)
    batch = {"x": clients.x[rows], "y": clients.y[rows]}
    return batch if mask is None else batch | {"mask": torch.from_numpy(mask).to(rows.device)}


def _write(into: Any, values: Any, active: int) -> None:
    """Put the first clients' new values in their place."""
    tree_map(lambda old, new: old[:active].copy_(new), into, values)
