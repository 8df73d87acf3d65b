"""What every part must satisfy, ours and yours: `check_part(MyPart())` raises an AssertionError that says why not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from fedstrata.buffers import Buffers
from fedstrata.clients import Clients
from fedstrata.core import Cohort, Finish, Local, Part, Proxy, Recipe, Round, Select, State, Step, Weigh
from fedstrata.descent import Errand, Federation
from fedstrata.errors import PartError
from fedstrata.errors import check as require
from fedstrata.layout import Arrays
from fedstrata.merge import merged
from fedstrata.optim import SGD, Training
from fedstrata.probes import PROBES
from fedstrata.recipes import recipe
from fedstrata.server import Replies, Server, close_round
from fedstrata.task import Batch, Task, buffers_of
from fedstrata.train import Trained, survey, train
from fedstrata.values import Value, kinds, load

POPULATION = 7
IDS = (0, 2, 3, 6)


def check_part(part: Part) -> None:
    """Everything that is asked of a part: plain data, pure hooks, no dependence on the order or stacking of clients."""
    check_value(part)
    try:
        _check_hooks(part)
    except PartError as e:
        raise AssertionError(str(e)) from e


def _check_hooks(part: Part) -> None:
    if isinstance(part, Select):
        _check_select(part)
    elif isinstance(part, Finish):
        _check_finish(part)
    else:
        _check_stacking(part)
        _check_merging(part)
        for dtype in (torch.float64, torch.float32):
            _check_server(part, dtype)


def check_value(value: Value) -> None:
    """Frozen, hashable, and the same again from its repr, its JSON and its fingerprint."""
    name = type(value).__name__
    declared = getattr(type(value), "__dataclass_params__", None)
    _hold(declared is not None and declared.frozen, f"{name} is not frozen: declare it with @dataclass(frozen=True)")
    _hold(hash(value) == hash(replace(value)), f"{name} hashes by identity")  # pyright: ignore[reportArgumentType]
    _hold(load(value.to_dict(), type(value)) == value, f"{name} does not come back from its dictionary")
    _hold(eval(repr(value), _names(value)) == value, f"repr({name}) does not evaluate back")
    _hold(value.fingerprint == replace(value).fingerprint, f"{name}'s fingerprint changes")  # pyright: ignore[reportArgumentType]


def _names(value: Value) -> dict[str, type]:
    """What the names in its repr mean: for a recipe or a part, parts; Adam is also an optimiser of clients."""
    training = kinds(Training) if isinstance(value, Training) else {}
    return dict(kinds()) | dict(kinds(Part)) | dict(training)


def _check_select(part: Select) -> None:
    stats = {n: torch.rand(POPULATION, dtype=torch.float64) for n in PROBES} | {"examples": torch.arange(1.0, 8)}
    recipe = _with(part)
    state = recipe.init(Task.of(_net(torch.float64)).layout, POPULATION)
    with _untouched(stats, state):
        ids, after = recipe.pick(state, stats, np.random.default_rng(0))
    _same_shapes(state, after, part)
    again, _ = recipe.pick(state, stats, np.random.default_rng(0))
    _hold(torch.equal(ids, again), f"{type(part).__name__}.pick differs for the same generator")


def _check_finish(part: Finish) -> None:
    """It gives a model like the one it got, leaves what it got as it was, and draws from its generator alone."""
    lab, name = _Lab.of(part), type(part).__name__
    stats = lab.asked(part.asks) | {"examples": lab.cohort.stats["examples"]}
    given = lab.cohort.model, lab.buffers, stats, lab.fed.task
    with _untouched(*given[:3]):
        one, other = (part.finish(*given, np.random.default_rng(0)) for _ in range(2))
    _hold(one.shape == given[0].shape and one.dtype == given[0].dtype, f"{name} changes the model's shape or type")
    _hold(bool(one.isfinite().all()), f"{name} gives NaN or infinity")
    _hold(torch.equal(one, other), f"{name} differs for the same generator")


def _check_stacking(part: Part) -> None:
    """K clients stacked (vmap) give what they give one by one, and what they are given is left as it was."""
    lab = _Lab.of(part)
    state, memory = lab.state(), lab.memory()
    for number in range(2):  # the second time with memories and a state that were used
        errand = lab.errand(state, memory, number)
        with _untouched(errand.brief, errand.memory, errand.stats, errand.start, state):
            together = train(lab.fed, errand)
        apart = _joined([train(lab.fed, _alone(errand, j)) for j in range(len(IDS))])
        pairs = zip(tree_leaves(_tree(together)), tree_leaves(apart), strict=True)
        close = all(torch.allclose(a.double(), b.double(), rtol=1e-7, atol=1e-9) for a, b in pairs)
        _hold(close, f"{type(part).__name__} gives stacked clients something else than one client alone")
        _same_shapes(memory, together.memory, part)
        shapes = {n: list(v.shape[1:]) for n, v in together.uploads.get("local.0", {}).items()}
        wrong = [n for n in getattr(part, "vectors", ()) if shapes.get(n) != [lab.fed.task.layout.size]]
        _hold(not wrong, f"{type(part).__name__}.vectors names {wrong}, of which its uploads have no vector [P]")
        memory = together.memory
        *_, state = lab.fed.recipe.aggregate(state, lab.round(together.delta, together), together.uploads)


def _check_server(part: Part, dtype: torch.dtype) -> None:
    """The server half is pure, keeps the shape of its state, and does not depend on the order of the clients."""
    lab, name = _Lab.of(part, dtype), type(part).__name__
    recipe, state = lab.fed.recipe, lab.state()
    told = train(lab.fed, lab.errand(state, lab.memory()))
    for scale in (1.0, 0.0):  # real updates, then no updates at all
        draw = torch.Generator().manual_seed(1)
        delta = scale * torch.randn(told.delta.shape, generator=draw, dtype=dtype)
        round, uploads = lab.round(delta, told), tree_map(lambda v, s=scale: s * v, told.uploads)
        with _untouched(state, round.delta, round.cohort.stats, round.old, round.buffers.clients):
            model, buffers, after = recipe.aggregate(state, round, uploads)
        _hold(model.dtype == dtype, f"{name} makes a {model.dtype} model of a {dtype} one")
        finite = all(bool(v.isfinite().all()) for v in (model, recipe.shown(after, model), *buffers.values()))
        _hold(finite, f"{name} gives NaN or infinity" + (" when no client moved" if not scale else ""))
        _same_shapes(state, after, part)
        _same_shapes(lab.buffers, buffers, part)
        order = torch.tensor([2, 0, 3, 1])
        other, *_ = recipe.aggregate(state, _shuffled(round, order), tree_map(lambda v, o=order: v[o], uploads))
        rtol, atol = (1e-9, 1e-12) if dtype == torch.float64 else (1e-4, 1e-5)
        _hold(torch.allclose(model, other, rtol, atol), f"{name} depends on the clients' order")


def _check_merging(part: Part) -> None:
    """Where a part says that it is additive, a round over merged replies is the round over all clients."""
    lab = _Lab.of(part)
    recipe, cohort = lab.fed.recipe, lab.cohort
    if recipe.single:
        return
    told = train(lab.fed, lab.errand(lab.state(), lab.memory()))
    table = {n: v.new_zeros(POPULATION, *v.shape[1:]).index_copy(0, cohort.ids, v) for n, v in cohort.stats.items()}
    server = Server(cohort.layout, cohort.model, lab.buffers, lab.state(), table)
    sent = cohort.ids, told.delta, told.buffers, told.uploads, told.stats
    chunks = (Replies(*tree_map(lambda v, c=c: v[c], sent)) for c in (slice(0, 3), slice(3, 4)))
    ones = [merged(recipe, server, cohort, c) for c in chunks]
    both = Replies(*tree_map(lambda *v: torch.cat(v), *((r.ids, r.delta, r.buffers, r.uploads, r.stats) for r in ones)))
    ends = (close_round(recipe, server, cohort, r, lr=0.1)[0] for r in (Replies(*sent), both))
    pairs = zip(*(tree_leaves((s.model, s.buffers, s.state)) for s in ends), strict=True)
    close = all(torch.allclose(a.double(), b.double(), rtol=1e-7, atol=1e-9) for a, b in pairs)
    _hold(close, f"{type(part).__name__} is additive, but gives something else for merged replies than for all")


@dataclass(frozen=True)
class _Lab:
    """A part at work on four clients of a small federation."""

    fed: Federation
    buffers: Arrays
    cohort: Cohort

    @classmethod
    def of(cls, part: Part, dtype: torch.dtype = torch.float64) -> "_Lab":
        algorithm, clients = _with(part), _clients()
        net, training = algorithm.adapt(_net(dtype), SGD(lr=0.1, batch=4), 1)
        task = Task.of(net)
        fed = Federation(algorithm, task, clients.to(task.layout.device, dtype), training, seed=1)
        ids = torch.tensor(IDS)
        stats = {"examples": torch.from_numpy(clients.sizes).double()[ids], "labels": clients.labels()[ids]}
        named = {n: p for n, p in net.named_parameters() if p.requires_grad}
        mean = float(clients.sizes.mean())
        cohort = Cohort(task.layout, ids, stats, task.layout.flatten(named), POPULATION, mean_examples=mean)
        return cls(fed, buffers_of(net), cohort)

    def state(self) -> State:
        return self.fed.recipe.init(self.fed.task.layout, POPULATION)

    def memory(self) -> State:
        return _stacked(self.fed.recipe.enroll(self.fed.task, self.buffers), len(IDS))

    def asked(self, names: frozenset[str]) -> Arrays:
        """What the four clients measure at the global model."""
        many = _stacked(self.buffers, len(IDS))
        return survey(self.fed, Errand(list(IDS), 0, self.cohort.model, many, {}, {}, {}, names))

    def errand(self, state: State, memory: State, number: int = 0) -> Errand:
        recipe = self.fed.recipe
        stats = self.cohort.stats | self.asked(recipe.briefing)
        brief = recipe.brief(state, replace(self.cohort, stats=stats, number=number))
        many, probes = _stacked(self.buffers, len(IDS)), recipe.needs & PROBES.keys()
        return Errand(list(IDS), number, self.cohort.model, many, brief, memory, stats, probes)

    def round(self, delta: Tensor, told: Trained) -> Round:
        """A round in which the clients moved so, and told what they told."""
        draw, layout = torch.Generator().manual_seed(2), self.fed.task.layout
        x = torch.randn(12, 5, generator=draw, dtype=layout.dtype)
        proxy = Proxy(self.fed.task, Batch(x, torch.arange(12) % 3), self.buffers)
        cohort = replace(self.cohort, stats=self.cohort.stats | told.stats)
        return Round(cohort, delta, proxy=proxy, lr=0.1, buffers=Buffers(self.buffers, told.buffers))


def _with(part: Part) -> Recipe:
    """A recipe that has this part, and plain averaging for the rest."""
    kinds = (Select, Weigh, Local, Step, Finish)
    require(isinstance(part, kinds), f"{type(part).__name__} is no Select, Local, Weigh, Step or Finish")
    return recipe(**{part.slot: part})


def _net(dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).to(dtype)


def _clients() -> Clients:
    draw = np.random.default_rng(0)
    sizes = (9, 1, 12, 5, 4, 3, 7)
    return Clients.of([(draw.standard_normal((n, 5)), draw.integers(0, 3, n)) for n in sizes])


def _alone(errand: Errand, j: int) -> Errand:
    given = {n: getattr(errand, n) for n in ("brief", "memory", "stats", "buffers")}
    return replace(errand, ids=[IDS[j]], **tree_map(lambda v: v[j : j + 1], given))


def _shuffled(round: Round, order: Tensor) -> Round:
    cohort = replace(round.cohort, ids=round.cohort.ids[order], stats=_at(round.cohort.stats, order))
    sent = replace(round.buffers, clients=_at(round.buffers.clients, order))
    return replace(round, cohort=cohort, delta=round.delta[order], buffers=sent, notes={})


def _at(arrays: Arrays, order: Tensor) -> Arrays:
    return {n: v[order] for n, v in arrays.items()}


def _stacked(state: Any, k: int) -> Any:
    return tree_map(lambda v: v.expand(k, *v.shape).clone(), state)


def _tree(t: Trained) -> tuple[Tensor, Arrays, State, State, Arrays]:
    return t.delta, t.buffers, t.memory, t.uploads, t.stats


def _joined(parts: list[Trained]) -> Any:
    return tree_map(lambda *vs: torch.cat(vs), *map(_tree, parts))


def _same_shapes(before: Any, after: Any, part: Part) -> None:
    """State and memories keep names, shapes and types, so that they can be saved, stacked and sent; some may be new."""
    flat = [dict(tree_flatten_with_path(tree)[0]) for tree in (before, after)]
    shapes = [{keystr(k): (tuple(v.shape), v.dtype) for k, v in f.items()} for f in flat]
    changed = [f"{k}: {v} -> {shapes[1].get(k)}" for k, v in shapes[0].items() if shapes[1].get(k) != v]
    _hold(not changed, f"{type(part).__name__} changes the shape of its state: {', '.join(changed)}")


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
