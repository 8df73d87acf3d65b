"""K clients' local work: measure, train, report."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedstrata.clients import Schedule, all_batches, probe_batches, training_batches
from fedstrata.core import State
from fedstrata.descent import (
    Errand,
    Federation,
    Given,
    Steps,
    begin,
    descend,
    gathered,
    given_to,
    over_clients,
    take_steps,
    turn_of,
    with_hook,
)
from fedstrata.hooks import pair
from fedstrata.layout import Arrays
from fedstrata.probes import AFTER, MINI, WHOLE, measure
from fedstrata.rng import seeded, torch_seed
from fedstrata.task import Batch

EXAMPLES_AT_ONCE = 256
"""Of each client, where all of its data is looked at."""

Watch = Callable[[str], AbstractContextManager[object]]
"""Wraps each stage of the clients' work, by name: how a runtime says where an error happened."""


@dataclass(frozen=True)
class Trained:
    """What K clients bring back."""

    delta: Tensor  # [K, P]
    buffers: Arrays  # [K, ...] each, where they are sent
    memory: State
    uploads: State
    stats: Arrays  # [K, ...] each, what they measured and tell


def train(fed: Federation, errand: Errand, watch: Watch = nullcontext, steps: Steps = take_steps) -> Trained:
    """Send K clients through one round."""
    lr, ids = fed.training.rate(errand.number), errand.ids
    with watch("measuring"):
        measured = survey(fed, errand)
    with watch("training"), seeded(torch_seed(fed.seed, "torch", errand.number, ids[0]), errand.start.device):
        schedule = training_batches(fed.clients, ids, fed.training, fed.seed, errand.number)
        if fed.fates is not None:
            schedule = fed.fates.shortened(schedule, ids, errand.number)
        w, buffers, optimizer = descend(fed, errand, errand.stats | measured, schedule, lr, steps)
    with watch("reporting"):
        measured |= _on_all_data(fed, errand.ids, errand.probes & AFTER.keys(), w, buffers)
        taken = torch.from_numpy(schedule.steps).double().to(w.device)  # of an int, steps * lr would be float32
        memory, uploads = _reported(fed, errand, errand.stats | measured, w, buffers, taken)
    told = {n: v for n, v in (measured | {"steps": taken}).items() if n in fed.recipe.told}
    kept = {"optimizer": optimizer} if not fed.training.reset_optimizer else {}
    kept |= {"buffers": buffers} if fed.buffers == "local" else {}
    nobody_keeps = not with_hook(fed, "report")  # a part may remember w itself
    delta = w.sub_(errand.start) if nobody_keeps else w - errand.start
    if fed.fates is not None:
        fed.fates.spoil(delta, errand.start, ids, errand.number)
    sent = buffers if fed.buffers == "average" else {}  # else nobody looks at them
    return Trained(delta, sent, memory | kept, uploads, told)


def _reported(
    fed: Federation, errand: Errand, stats: Arrays, w: Tensor, buffers: Arrays, steps: Tensor
) -> tuple[State, State]:
    """What K trained clients remember and upload, [K, ...] each."""
    lr, parts = fed.training.rate(errand.number), with_hook(fed, "report")
    memory: State = {n: errand.memory[n] for n in fed.recipe.locals()}
    uploads: State = {n: {} for n in memory}
    if not parts:
        return memory, uploads

    def report(w: Tensor, after: Arrays, given: Given, steps: Tensor) -> Any:
        end = {"began": begin(fed, errand.start, lr, given), "steps": steps, "trained": after}
        said = {n: p.report(w, turn_of(fed, n, errand.start, given, lr, **end)) for n, p in parts.items()}
        return {n: pair(parts[n], "report", v, "(memory, upload)") for n, v in said.items()}

    pairs = over_clients(report, w, buffers, given_to(fed, errand, stats), steps)
    return memory | {n: m for n, (m, _) in pairs.items()}, uploads | {n: u for n, (_, u) in pairs.items()}


def survey(fed: Federation, errand: Errand) -> Arrays:
    """What K clients measure at the model they received, [K, ...] each."""
    start = errand.start.expand(len(errand.ids), -1)
    found = _on_all_data(fed, errand.ids, errand.probes & WHOLE.keys(), start, errand.buffers)
    if mini := errand.probes & MINI.keys():
        schedule = probe_batches(fed.clients, errand.ids, fed.training, fed.seed, errand.number)
        batch = _batch(fed, schedule, 0, len(errand.ids))
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
    for step, active in enumerate(schedule.active):
        batch = _batch(fed, schedule, step, active)
        sums = over_clients(partial(_measured, fed, names), *tree_map(lambda v, a=active: v[:a], given), batch)
        for n, v in sums.items():
            total[n] = v.clone() if step == 0 else total[n].index_add(0, torch.arange(active, device=v.device), v)
    count = torch.from_numpy(schedule.count.sum(1)).to(w.device)
    back = torch.from_numpy(np.argsort(order)).to(w.device)
    return {n: (v / count.to(v.dtype).view(-1, *[1] * (v.dim() - 1)))[back] for n, v in total.items()}


def _measured(fed: Federation, names: frozenset[str], w: Tensor, buffers: Arrays, batch: Arrays) -> Arrays:
    return measure(names, fed.task, w, buffers, Batch(**batch))


def _batch(fed: Federation, schedule: Schedule, step: int, active: int) -> Arrays:
    """The examples of the first clients' batches, [A, B, ...], and the mask where some are short."""
    width, mask = schedule.width(step, active)
    device = fed.clients.x.device
    rows = torch.from_numpy(schedule.index[:active, step, :width].T.copy()).to(device)
    batch = {n: v.contiguous() for n, v in gathered(fed.clients, rows).items()}  # as one client's would be
    return batch | ({} if mask is None else {"mask": torch.from_numpy(mask).to(device)})
