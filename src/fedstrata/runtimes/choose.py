"""Which engine suits a run: tiny models are stacked, convolutions go to a pool of processes, a GPU stacks all."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing import current_process
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedstrata import pooled
from fedstrata.closed import compiles
from fedstrata.descent import Federation, Steps, take_compiled_steps, take_steps
from fedstrata.errors import SettingError
from fedstrata.evaluate import Sets
from fedstrata.graphs import Captured
from fedstrata.layout import Arrays
from fedstrata.precision import Precision, multiplying
from fedstrata.runtimes.apart import Apart
from fedstrata.runtimes.cluster import Cluster
from fedstrata.runtimes.company import seat
from fedstrata.runtimes.crew import aside, can_differentiate
from fedstrata.runtimes.pool import Pool
from fedstrata.runtimes.ray import Ray
from fedstrata.runtimes.stacked import Stacked, activations
from fedstrata.runtimes.vault import Vault
from fedstrata.runtimes.visit import Runtime
from fedstrata.task import Task
from fedstrata.threads import cores

Engine = Literal["auto", "stacked", "pool", "apart", "ray"]
"""stacked: K clients in one pass; pool: one by one in a process a core; apart: one by one with all threads; ray: over a
cluster."""

Compile = Literal["auto", "always", "never"]
"""Whether a GPU's local step is compiled; auto: when the run is long enough to earn it back."""

PASSES_SAVED, BYTES_A_SECOND = 7, 3e12
"""What compiling saves: passes over a step's activations, at a large GPU's memory speed."""

LAUNCHES_SAVED, COMPILING, COMPILING_MORE = 1e-5, 3.0, 1.4
"""Seconds that it saves by starting fewer kernels, for each tensor of the model, and that it takes: in any case, and
for each tensor. An H200 took 5 for logistic regression, 13 for SimpleCNN and 96 for ResNet20."""

TINY = 1 << 26
"""Bytes of a step's activations below which starting kernels is all that counts."""

STACKED_BELOW = 4e6
"""Parameters x batch size below which a step is mostly overhead, which stacked clients share."""

TRIED = 6
"""Examples that a model is tried out on."""


def chosen(
    engine: Engine,
    fed: Federation,
    vault: Vault,
    sets: Sets,
    at: tuple[Tensor, Arrays],
    rounds: int = 1,
    chunk: int | None = None,
    workers: int | None = None,
    compile: Compile = "auto",
    precision: Precision = "float32",
    address: str | None = None,
) -> Runtime:
    """The engine of this name, or the one that suits the run; `at` is a model to try things on, with its buffers.

    A GPU of another process multiplies by `precision`; `address` is that of a Ray cluster.
    """
    if engine == "ray":
        inside, fed = _settled("auto", fed, 1, at, rounds)
        steps = partial(steps_of, rounds=rounds, compile=compile)
        cluster = _cluster(fed, sets, workers, address)
        return Ray(fed, vault, sets, cluster, inside == "stacked", chunk, steps, precision)
    count = min(workers or cores(), cores(), fed.recipe.select.size(len(fed.clients)))
    if engine == "pool" and (why := _no_pool(fed)):
        raise SettingError(f"engine = 'pool' {why}; use 'stacked' or 'apart'")
    engine, fed = _settled(engine, fed, count, at, rounds)
    if engine == "stacked":
        make, company = partial(steps_of, rounds=rounds, compile=compile), seat()
        steps = make(fed) if company is None else company.steps(fed, make)
        return Stacked(fed, vault, sets, chunk, steps)
    return Pool(fed, vault, sets, max(1, count)) if engine == "pool" else Apart(fed, vault, sets)


def _settled(
    engine: Engine, fed: Federation, workers: int, at: tuple[Tensor, Arrays], rounds: int
) -> tuple[Engine, Federation]:
    """(the engine, which may be left to be chosen, the run with the task that suits it).

    Clients that are to be stacked are taken one by one where a trial shows that padding is seen, or that a model draws
    by itself; the latter may go on stacked on a GPU, where one by one takes many times as long.
    """
    name = fitting(fed, workers) if engine == "auto" else engine
    task = suited(fed, name, at, rounds)
    if engine == "auto" and name == "stacked":
        some = _some(fed)
        with multiplying("float32"):
            fine = task.pads_well(*at, *some) or (fed.clients.x.is_cuda and task.draws(*at, some[0]))
        if not fine:
            name = _one_by_one(fed, workers)
            task = suited(fed, name, at, rounds)
    return name, replace(fed, task=task)


def fitting(fed: Federation, workers: int) -> Engine:
    """The engine that suits a run, by its kind and its size."""
    if fed.clients.x.device.type != "cpu":
        return "stacked"
    batch = fed.training.batch or int(fed.clients.sizes.max())
    if fed.task.folds and not convolves(fed.task.train_mode) and fed.task.layout.size * batch < STACKED_BELOW:
        return "stacked"
    return _one_by_one(fed, workers)


def _one_by_one(fed: Federation, workers: int) -> Engine:
    return "pool" if workers > 1 and not _no_pool(fed) else "apart"


def steps_of(fed: Federation, clients: int | None = None, *, rounds: int, compile: Compile) -> Steps:
    """How local steps are taken: one after another, or on a GPU as captured graphs, compiled where that pays.

    As many clients at a time as are selected, unless told.
    """
    if fed.clients.x.device.type != "cuda":
        return take_compiled_steps if fed.task.compiled and fed.in_closed_form else take_steps
    batch = fed.training.batch or int(fed.clients.sizes.max())
    clients = clients or fed.recipe.select.size(len(fed.clients))
    touched = clients * batch * activations(fed) * fed.task.layout.dtype.itemsize  # bytes, in one pass over them
    tiny = touched < TINY
    steps = compiled_steps(fed.training.steps, fed.training.epochs, batch, fed.clients.sizes, tiny)
    worth = pays(rounds * steps, touched, len(fed.task.layout.tensors))
    return Captured(fed, worth if compile == "auto" else compile == "always", tiny)


def compiled_steps(steps: int | None, epochs: int, batch: int, sizes: NDArray[Any], tiny: bool) -> float:
    """Steps of a round that would be compiled: those that all clients take, and where they are tiny, all."""
    return steps or epochs * float(sizes.mean() if tiny else sizes.min()) / batch


def pays(steps: float, touched: float, tensors: int) -> bool:
    """Whether compiling saves more than it takes. From sizes alone, so that the same run always does the same."""
    saved = steps * (PASSES_SAVED * touched / BYTES_A_SECOND + LAUNCHES_SAVED * tensors)
    return saved > COMPILING + COMPILING_MORE * tensors


def suited(fed: Federation, engine: Engine, at: tuple[Tensor, Arrays], rounds: int) -> Task:
    """The task in the layout that suits the machine, and folded, only where a trial shows that this is right."""
    task, x = fed.task, fed.clients.x
    some, targets = _some(fed)
    looked_at = fed.recipe.select.size(len(fed.clients)) / len(fed.clients) * fed.training.epochs + 1  # and evaluated
    passes = rounds * looked_at * len(x)

    def right(trial: Callable[..., bool]) -> bool:
        check = partial(trial, *at, some)
        return aside(check) if engine == "pool" else check()  # gradients taken here may spoil those of workers

    with multiplying("float32"):
        folds = task.folds and (engine != "stacked" or task.folds_well(*at, some, targets))
        images = x.device.type == "cpu" and x.dim() == 4 and convolves(task.train_mode)
        last = images and right(task.takes_channels_last)
        worth = last and engine != "stacked" and pooled.pays(task.eval_mode, x, passes)
        pools = worth and right(task.takes_pooled)
    numbers = passes * task.layout.size
    compiled = engine == "stacked" and fed.augment is None and compiles(task, x, fed.clients.y, numbers)
    return replace(task, channels_last=last, folds=folds, pooled=pools, compiled=compiled)


def _some(fed: Federation) -> tuple[Tensor, Tensor]:
    """A few examples, of several clients, and their targets."""
    x, y = fed.clients.x, fed.clients.y
    rows = torch.linspace(0, len(x) - 1, min(len(x), TRIED)).long().to(x.device)
    return x[rows], y[rows]


def _cluster(fed: Federation, sets: Sets, workers: int | None, address: str | None) -> Cluster:
    """The Ray cluster for a run: one GPU a worker where the data is on a GPU, else one core."""
    arrays = {id(v): v for v in (fed.clients.x, fed.clients.y, *(v for pair in sets.values() for v in pair))}
    examples = sum(v.numel() * v.element_size() for v in arrays.values())
    clients = fed.recipe.select.size(len(fed.clients))
    most = min(workers, clients) if workers is not None else clients
    return Cluster(address, most, fed.clients.x.device.type == "cuda", examples)


def convolves(model: nn.Module) -> bool:
    """Whether it has convolutions, which gain nothing from being stacked on a CPU and lose half."""
    return any(isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for m in model.modules())


def _no_pool(fed: Federation) -> str:
    """Why there can be no worker processes, if so."""
    if fed.clients.x.device.type != "cpu":
        return f"is for the CPU, and the data is on {fed.clients.x.device}"
    if sys.platform != "linux":
        return f"needs processes that can be forked, which is not safe on {sys.platform}"
    if current_process().daemon:
        return "cannot be had inside a worker process"
    if torch.accelerator.is_available() and not can_differentiate():
        cure = "start Python anew for it, or hide the GPU by CUDA_VISIBLE_DEVICES=''"
        return f"cannot be had once torch has started threads for a GPU here ({cure})"
    return ""
