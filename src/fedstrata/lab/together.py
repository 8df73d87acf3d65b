"""Runs of a comparison that go on together on a GPU, as large a company as it has room and work for."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import ceil

import torch

from fedstrata.clients import cast
from fedstrata.descent import Federation
from fedstrata.experiment import Experiment
from fedstrata.lab.jobs import Job, Told, loaded, named, play
from fedstrata.memory import kept
from fedstrata.precision import multiplying
from fedstrata.rng import seeded
from fedstrata.runtimes import activations, clients_at_once, in_memory, together
from fedstrata.simulate import fresh_memory, usable_device
from fedstrata.stopping import Stopping
from fedstrata.task import Task, buffers_of

FULL = 6 << 30
"""Bytes that a local step of all clients goes over once, in models and in what layers put out: from there on a GPU is
busy for milliseconds a step, and more runs would only wait for each other."""

LARGEST = 48
"""Runs in a company: each has a thread and a record, and all of them end at once."""

SAME = (
    "data",
    "label",
    "client",
    "without",
    "val",
    "model",
    "training",
    "augment",
    "buffers",
    "device",
    "precision",
    "compile",
)
"""Settings that runs must have in common."""


def companies(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs in groups that can go on together: those whose clients do the same on a GPU; others by themselves."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(_kind(job), []).append(job)
    return [some for group in groups.values() for some in (_filled(group) if len(group) > 1 else [group])]


def _filled(jobs: Sequence[Job]) -> list[list[Job]]:
    """One after another while there is room; a run with more clients takes more of it."""
    found, taken, known = list[list[Job]](), Fraction(1), dict[str, int]()
    for job in jobs:
        exp = job.experiment
        size = repr((exp.recipe.select, exp.partition, exp.train_share))
        if size not in known:
            known[size] = most(exp)
        taken += Fraction(1, known[size])
        if taken > 1:
            found, taken = [*found, []], Fraction(1, known[size])
        found[-1].append(job)
    return found


def _kind(job: Job) -> str:
    """The same text for runs that can go on together. Their selection, weighting and server steps may differ."""
    exp = job.experiment
    if not exp.device.startswith("cuda") or exp.engine not in ("auto", "stacked") or exp.chunk is not None:
        return f"by itself: {job.folder}"
    settings = exp.settings()
    return json.dumps([{n: settings.get(n) for n in SAME}, [p.to_dict() for p in exp.recipe.local]], sort_keys=True)


def most(exp: Experiment) -> int:
    """How many runs like this can go on together: as many as there is memory for, or as fill the device.

    What clients remember is the host's to keep, and has the share of its memory that one run's would have.
    """
    data = loaded(exp)
    model, training = exp.recipe.adapt(exp.network(data), exp.training, exp.seed)
    task, clients = Task.of(model), exp.clients(data)
    one = replace(clients, x=cast(clients.x[:1], task.layout.device, task.layout.dtype))
    selected, batch = exp.recipe.select.size(len(clients)), training.batch or int(clients.sizes.max())
    fed = Federation(exp.recipe, task, one, training, buffers=exp.buffers)
    there = clients_at_once(fed, usable_device(exp.device))
    numbers = task.layout.size + batch * (one.x.numel() + activations(fed))  # of each client
    full = ceil(FULL / (selected * numbers * task.layout.dtype.itemsize))
    remembered, room = fresh_memory(fed, task.layout.zeros(), buffers_of(model)), exp.memory and exp.memory * 2**30
    vaults = in_memory(remembered, len(clients), room)
    return max(1, min(there // selected, full, LARGEST, vaults or there))  # or they are on disk


def run_together(jobs: Sequence[Job], say: Told) -> None:
    """Run these as one company. One that fails does not hold up the others; what was wrong is said in the end."""

    def go(job: Job) -> None:
        with named(job):
            play(job.experiment, job.folder, partial(say, job))
            say(job, None)

    with _in_common(jobs[0].experiment):
        found = together([partial(go, job) for job in jobs])
    for error in found:
        if error is not None:
            raise error


@contextmanager
def _in_common(exp: Experiment) -> Iterator[None]:
    """What a run sets for its time and puts back in the end is set here for all: they do not end in order."""
    threads = torch.get_num_threads()
    try:
        with Stopping(True), multiplying(exp.precision), kept(), seeded(exp.seed, usable_device(exp.device)):
            yield
    finally:
        torch.set_num_threads(threads)
