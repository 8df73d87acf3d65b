"""What every part must satisfy, ours and yours: `check_part(MyPart())` raises an AssertionError that says why not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fedstrata.clients import Clients
from fedstrata.core import Cohort, Local, Part, Proxy, Recipe, Round, Select, State, Step, Weigh
from fedstrata.errors import check as require
from fedstrata.layout import Arrays
from fedstrata.optim import SGD, Training
from fedstrata.probes import PROBES
from fedstrata.recipes import recipe
from fedstrata.task import Batch, Task, buffers_of
from fedstrata.train import Errand, Federation, Trained, train
from fedstrata.values import Value, kinds, load

POPULATION = 7
IDS = (0, 2, 3, 6)


def check_part(part: Part) -> None:
    """Everything that is asked of a part: plain data, pure hooks, no dependence on the order or stacking of clients."""
    check_value(part)
    if isinstance(part, Select):
        _check_select(part)
    else:
        _check_stacking(part)
        for dtype in (torch.float64, torch.float32):
            _check_server(part, dtype)


def check_value(value: Value) -> None:
    """Frozen, hashable, and the same again from its repr, its JSON and its fingerprint."""
    name = type(value).__name__
    _hold(hash(value) == hash(replace(value)), f"{name} hashes by identity")  # pyright: ignore[reportArgumentType]
    _hold(load(value.to_dict(), type(value)) == value, f"{name} does not come back from its dictionary")
    _hold(eval(repr(value), _names(value)) == value, f"repr({name}) does not evaluate back")
    _hold(value.fingerprint == replace(value).fingerprint, f"{name}'s fingerprint changes")  # pyright: ignore[reportArgumentType]
    for field in fields(value):  # pyright: ignore[reportArgumentType]
        try:
            setattr(value, field.name, None)
        except FrozenInstanceError:
            continue
        raise AssertionError(f"{name} is not frozen: declare it with @dataclass(frozen=True)")


def _names(value: Value) -> dict[str, type]:
    """What the names in its repr mean: for a recipe or a part, parts; Adam is also an optimiser of clients."""
    training = kinds(Training) if isinstance(value, Training) else {}
    return dict(kinds()) | dict(kinds(Part)) | dict(training)


def _check_select(part: Select) -> None:
    stats = {n: torch.rand(POPULATION, dtype=torch.float64) for n in PROBES} | {"examples": torch.arange(1.0, 8)}
    state = part.init(_task().layout, POPULATION)
    with _untouched(stats, state):
        ids, after = part.pick(state, stats, np.random.default_rng(0))
    _same_shapes(state, after, part)
    again, _ = part.pick(state, stats, np.random.default_rng(0))
    _hold(torch.equal(ids, again), f"{type(part).__name__}.pick differs for the same generator")
    _hold(len(set(ids.tolist())) == len(ids), f"{type(part).__name__}.pick chose a client twice")
    _hold(bool(((ids >= 0) & (ids < POPULATION)).all()), f"{type(part).__name__}.pick chose a client that is not there")


def _check_stacking(part: Part) -> None:
    """K clients stacked (vmap) give what they give one by one, and what they are given is left as it was."""
    algorithm = _with(part)
    fed = Federation(algorithm, _task(), _clients(), SGD(lr=0.1, batch=4), seed=1)
    server, state = _cohort(fed.task), algorithm.init(fed.task.layout, POPULATION)
    memory = _stacked(algorithm.enroll(fed.task, buffers_of(_net())), len(IDS))
    for _ in range(2):  # the second time with memories that were used
        errand = _errand(algorithm, server, state, memory)
        with _untouched(errand.brief, errand.memory, errand.stats, errand.start, state):
            together = train(fed, errand)
        apart = _joined([train(fed, _alone(errand, j)) for j in range(len(IDS))])
        pairs = zip(tree_leaves(_tree(together)), tree_leaves(apart), strict=True)
        close = all(torch.allclose(a.double(), b.double(), rtol=1e-7, atol=1e-9) for a, b in pairs)
        _hold(close, f"{type(part).__name__} gives stacked clients something else than one client alone")
        _same_shapes(memory, together.memory, part)
        memory = together.memory


def _check_server(part: Part, dtype: torch.dtype) -> None:
    """The server half is pure, keeps the shape of its state, and does not depend on the order of the clients."""
    algorithm, task = _with(part), _task(dtype)
    state = algorithm.init(task.layout, POPULATION)
    for scale in (1.0, 0.0):  # real updates, then no updates at all
        round, uploads = _round(algorithm, task, scale)
        with _untouched(state, round.delta, round.cohort.stats, round.old):
            model, weights, after = algorithm.aggregate(state, round, uploads)
        _hold(model.dtype == dtype, f"{type(part).__name__} makes a {model.dtype} model of a {dtype} one")
        finite = all(bool(v.isfinite().all()) for v in (model, weights))
        _hold(finite, f"{type(part).__name__} gives NaN or infinity" + (" when no client moved" if not scale else ""))
        _same_shapes(state, after, part)
        order = torch.tensor([2, 0, 3, 1])
        shuffled = replace(round, cohort=_at(round.cohort, order), delta=round.delta[order], notes={})
        other, *_ = algorithm.aggregate(state, shuffled, tree_map(lambda v, o=order: v[o], uploads))
        rtol, atol = (1e-9, 1e-12) if dtype == torch.float64 else (1e-4, 1e-5)
        _hold(torch.allclose(model, other, rtol, atol), f"{type(part).__name__} depends on the clients' order")


def _with(part: Part) -> Recipe:
    """A recipe that has this part, and plain averaging for the rest."""
    if isinstance(part, Weigh):
        return recipe(weigh=part)
    require(isinstance(part, (Local, Step)), f"{type(part).__name__} is no Select, Local, Weigh or Step")
    return recipe(local=part) if isinstance(part, Local) else recipe(shrink=part)


def _net(dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).to(dtype)


def _task(dtype: torch.dtype = torch.float64) -> Task:
    return Task.of(_net(dtype))


def _clients() -> Clients:
    draw = np.random.default_rng(0)
    sizes = (9, 1, 12, 5, 4, 3, 7)
    return Clients.of([(draw.standard_normal((n, 5)), draw.integers(0, 3, n)) for n in sizes])


def _cohort(task: Task) -> Cohort:
    clients, ids = _clients(), torch.tensor(IDS)
    draw = torch.Generator().manual_seed(0)
    stats = {n: torch.rand(len(IDS), generator=draw, dtype=torch.float64) for n in PROBES}
    stats["gradient"] = torch.rand(len(IDS), task.layout.size, generator=draw, dtype=task.layout.dtype)
    stats |= {"examples": torch.from_numpy(clients.sizes).double()[ids], "labels": clients.labels()[ids]}
    stats["steps"] = torch.arange(1.0, len(IDS) + 1, dtype=torch.float64)
    start = task.layout.flatten(dict(_net(task.layout.dtype).named_parameters()))
    return Cohort(task.layout, ids, stats, start, POPULATION, mean_examples=float(clients.sizes.mean()))


def _errand(algorithm: Recipe, cohort: Cohort, state: State, memory: State) -> Errand:
    brief = algorithm.brief(state, cohort)
    probes = algorithm.needs & PROBES.keys()
    buffers = {n: b.expand(len(IDS), *b.shape) for n, b in buffers_of(_net(cohort.layout.dtype)).items()}
    return Errand(list(IDS), 1, cohort.model, buffers, brief, memory, cohort.stats, frozenset(probes))


def _alone(errand: Errand, j: int) -> Errand:
    given = {n: getattr(errand, n) for n in ("brief", "memory", "stats", "buffers")}
    return replace(errand, ids=[IDS[j]], **tree_map(lambda v: v[j : j + 1], given))


def _round(algorithm: Recipe, task: Task, scale: float) -> tuple[Round, State]:
    """A round with made-up updates, and uploads like those that clients of this recipe send."""
    cohort, layout = _cohort(task), task.layout
    draw = torch.Generator().manual_seed(1)
    delta = scale * torch.randn(len(IDS), layout.size, generator=draw, dtype=layout.dtype)
    buffers = buffers_of(_net(layout.dtype))
    memory = _stacked(algorithm.enroll(task, buffers), len(IDS))
    clients = _clients().to(layout.device, layout.dtype)
    fed = Federation(algorithm, task, clients, SGD(lr=0.1, batch=4), seed=1)
    uploads = train(fed, _errand(algorithm, cohort, algorithm.init(layout, POPULATION), memory)).uploads
    x = torch.randn(12, 5, generator=draw, dtype=layout.dtype)
    proxy = Proxy(task, Batch(x, torch.arange(12) % 3), buffers)
    return Round(cohort, delta, proxy=proxy, lr=0.1), tree_map(lambda v: scale * v, uploads)


def _at(cohort: Cohort, order: Tensor) -> Cohort:
    return replace(cohort, ids=cohort.ids[order], stats={n: v[order] for n, v in cohort.stats.items()})


def _stacked(state: State, k: int) -> State:
    return tree_map(lambda v: v.expand(k, *v.shape).clone(), state)


def _tree(t: Trained) -> tuple[Tensor, Arrays, State, State, Arrays]:
    return t.delta, t.buffers, t.memory, t.uploads, t.stats


def _joined(parts: list[Trained]) -> Any:
    return tree_map(lambda *vs: torch.cat(vs), *map(_tree, parts))


def _same_shapes(before: Any, after: Any, part: Part) -> None:
    """State and memories keep names, shapes and types, so that they can be saved, stacked and sent."""
    shapes = [tree_map(lambda v: (tuple(v.shape), v.dtype), tree) for tree in (before, after)]
    _hold(shapes[0] == shapes[1], f"{type(part).__name__} changes the shape of its state: {shapes[0]} -> {shapes[1]}")


@contextmanager
def _untouched(*trees: Any) -> Iterator[None]:
    """Within this block, nobody writes into these tensors."""
    copies = [v.clone() for v in tree_leaves(trees)]
    yield
    same = all(torch.equal(a, b) for a, b in zip(copies, tree_leaves(trees), strict=True))
    _hold(same, "a hook wrote into a tensor that it was given; make a new one")


def _hold(fine: bool, sentence: str) -> None:
    if not fine:
        raise AssertionError(sentence)
