"""The local steps of K clients, the only training loop of the library.

Clients are stacked in a leading axis. They are sorted by their number of steps, so that at every step those with data
left are a prefix and the others are not touched at all: not their parameters, momentum, counters or buffers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from fedstrata.augment import Augment
from fedstrata.buffers import BufferPolicy
from fedstrata.clients import Clients, Lengths, Schedule
from fedstrata.closed import compiled_descent, compiled_gradients, is_logistic, logistic_gradients
from fedstrata.core import Local, Recipe, State, Turn
from fedstrata.faults import Fates
from fedstrata.hooks import scalar, shaped
from fedstrata.layout import Arrays
from fedstrata.optim import SGD, Rate, Training
from fedstrata.rng import torch_seed
from fedstrata.task import Batch, Task

Given = tuple[State, State, Arrays, Arrays]
"""Briefs, memories, measurements and received buffers."""


@dataclass(frozen=True)
class Federation:
    """What a run is about, whoever executes it: the algorithm, the model's task, the data, the local training."""

    recipe: Recipe
    task: Task
    clients: Clients
    training: Training
    seed: int = 0
    buffers: BufferPolicy = "average"
    augment: Augment | None = None
    fates: Fates | None = None  # what goes wrong on purpose

    @cached_property
    def in_closed_form(self) -> bool:
        """Whether gradients need no autograd: logistic regression, and no part that adds to the loss."""
        return is_logistic(self.task) and not with_hook(self, "outputs") and not with_hook(self, "penalty")


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
class Desk:
    """What the steps of A stacked clients read, and what they change in place."""

    start: Tensor  # [P], or [A, P] where clients of several runs share the desk
    lr: Rate
    given: Given  # [A, ...] each
    w: Tensor  # [A, P] changed, as are the next two
    buffers: Arrays
    optimizer: Arrays

    def first(self, active: int) -> "Desk":
        """Those of the first clients; what is changed there is changed here."""
        if active == len(self.w):
            return self
        some = tree_map(lambda v: v[:active], (self.given, self.w, self.buffers, self.optimizer))
        return Desk(self.start if self.start.dim() == 1 else self.start[:active], self.lr, *some)


def descend(
    fed: Federation, errand: Errand, stats: Arrays, schedule: Schedule, lr: float, steps: "Steps"
) -> tuple[Tensor, Arrays, Arrays]:
    """The local steps of K clients: (parameters [K, P], buffers, optimiser state)."""
    order = np.argsort(-schedule.steps, kind="stable")
    there = torch.from_numpy(order).to(errand.start.device)
    ids, schedule = [errand.ids[i] for i in order], schedule.ordered(order)
    given = tree_map(lambda v: v[there], given_to(fed, errand, stats))
    begun = with_hook(fed, "begin")
    w = over_clients(partial(begin, fed, errand.start, lr), given) if begun else errand.start.expand(len(ids), -1)
    own = tree_map(lambda v: v[there], (errand.buffers, _optimizer(fed, errand)))
    desk = Desk(errand.start, lr, given, w.clone(), *own)
    feed = Feed.of(fed, ids, errand.number, schedule)
    steps(desk, feed)
    back = torch.from_numpy(np.argsort(order)).to(w.device)
    return tree_map(lambda v: v[back], (desk.w, desk.buffers, desk.optimizer))


@dataclass(frozen=True)
class Feed:
    """The batches of K clients, step by step, gathered where the data is."""

    fed: Federation
    schedule: Lengths
    rows: Tensor  # [S, B, K]
    noise: Tensor | None  # [K]
    changes: Tensor | None  # [S, B, K, 3]

    @classmethod
    def of(cls, fed: Federation, ids: Sequence[int], number: int, schedule: Schedule) -> "Feed":
        """For these clients in a round, in the order of the schedule."""
        device = fed.clients.x.device
        rows = torch.from_numpy(schedule.index.transpose(1, 2, 0).copy()).to(device)
        seeds = [torch_seed(fed.seed, "noise", number, i) for i in ids] if fed.task.noisy else None
        noise = None if seeds is None else torch.tensor(seeds).to(device)
        return cls(fed, schedule, rows, noise, _changes(fed, ids, number, schedule))

    def batch(self, step: int, active: int) -> Arrays:
        """What the first clients look at in a step, [A, B, ...] each; masked where some batch is short."""
        width, mask = self.schedule.width(step, active)
        batch = gathered(self.fed.clients, self.rows[step, :width, :active])
        if self.changes is not None and self.fed.augment is not None:
            how = self.changes[step, :width, :active].transpose(0, 1)
            batch["x"] = self.fed.augment.apply(batch["x"], how)
        if mask is not None:
            real = torch.from_numpy(mask).to(self.rows.device)
            batch |= {"mask": real, "share": shares(real, self.fed.task.layout.dtype)}
        return batch | ({} if self.noise is None else {"noise": self.noise[:active] + step})


Steps = Callable[[Desk, Feed], None]
"""Takes all local steps of the clients of a desk, in place."""


def take_steps(desk: Desk, feed: Feed) -> None:
    """One step after another."""
    for step, active in enumerate(feed.schedule.active):
        desk = desk.first(active)
        take_step(feed.fed, desk, feed.batch(step, active))


def take_compiled_steps(desk: Desk, feed: Feed) -> None:
    """The same for logistic regression by numba: nothing is gathered, and plain SGD never leaves the loop."""
    fed, clients, schedule = feed.fed, feed.fed.clients, feed.schedule
    assert isinstance(schedule, Schedule)  # runs that go on together do without
    if (how := _plain_sgd(fed, desk.lr)) is not None:
        velocity = desk.optimizer.get("velocity", desk.w[:, :0])
        state = desk.start, desk.w, velocity
        compiled_descent(fed.task, (clients.x, clients.y), schedule.index, schedule.count, state, how)
        return
    for step, active in enumerate(schedule.active):
        desk = desk.first(active)
        width, mask = schedule.width(step, active)
        rows = torch.from_numpy(np.ascontiguousarray(schedule.index[:active, step, :width]))
        real = torch.ones(active, width) if mask is None else torch.from_numpy(mask)
        share = shares(real, desk.w.dtype)
        follow(fed, desk, compiled_gradients(fed.task, desk.w, clients.x, clients.y, rows, share))


def _plain_sgd(fed: Federation, lr: Rate) -> np.ndarray | None:
    """The numbers of SGD without clipping and with no part but FedProx: rate, momentum, Nesterov's, decay, mu."""
    sgd, parts = fed.training, with_hook(fed, "correct").values()
    if not isinstance(sgd, SGD) or sgd.clip is not None or not all(p.pull is not None for p in parts):
        return None
    return np.array([lr, sgd.momentum, sgd.nesterov, sgd.weight_decay, sum(p.pull or 0.0 for p in parts)])


def take_step(fed: Federation, desk: Desk, batch: Arrays) -> None:
    """One local step of A clients."""
    gradient, after = gradients(fed, desk, batch)
    follow(fed, desk, gradient)
    for n, b in desk.buffers.items():
        b.copy_(after[n])


def follow(fed: Federation, desk: Desk, gradient: Tensor) -> None:
    """Step along the gradients of A clients, [A, P], once every part has corrected them."""
    for name, part in fed.recipe.locals().items():
        gradient = _corrected(fed, name, part, gradient, desk)
    fed.training.update(desk.w, fed.training.clipped(gradient), desk.optimizer, desk.lr)


def gradients(fed: Federation, desk: Desk, batch: Arrays) -> tuple[Tensor, Arrays]:
    """Each client's gradient of its loss and penalties, [A, P], and its buffers after the pass.

    The clients' losses are summed: no client's depends on another's parameters.
    """
    if fed.in_closed_form:
        return logistic_gradients(fed.task, desk.w, batch), {}
    layout, mask = fed.task.layout, batch.get("mask")
    named = layout.unflatten(desk.w)
    leaves = {n: named[n].detach().requires_grad_() for n, _ in layout.tensors}
    named = leaves | {alias: leaves[n] for alias, n in layout.aliases}
    with torch.enable_grad():
        outputs, features, after = fed.task.stacked(named, desk.buffers, batch["x"], mask, batch.get("noise"))
        for name, part in with_hook(fed, "outputs").items():
            hook = partial(_outputs, fed, name, part, desk.lr)
            outputs = over_desk(hook, desk, outputs, desk.given)
        losses = _losses(fed.task, outputs, batch["y"])  # [A, B]
        loss = losses.mean(1) if mask is None else (losses * batch["share"]).sum(1)  # [A]
        total = loss.sum()
        penalties = with_hook(fed, "penalty")
        seen = {n: batch[n].contiguous() for n in ("x", "y", "mask") if n in batch and penalties}
        seen |= {"outputs": outputs, "loss": loss} | ({"features": features} if features is not None else {})
        w = desk.w.detach().requires_grad_()
        for name, part in penalties.items():
            total = total + over_desk(partial(_penalty, fed, name, part, desk.lr), desk, w, desk.given, seen).sum()
        *pieces, direct = torch.autograd.grad(total, [*leaves.values(), w], allow_unused=True)
    found = [torch.zeros_like(v) if g is None else g for v, g in zip(leaves.values(), pieces, strict=True)]
    gradient = torch.cat([g.reshape(len(g), -1) for g in found], 1)
    return gradient if direct is None else gradient.add_(direct), after


def _losses(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """One loss an example, [A, B]; at once where a trial showed that no example's depends on another's."""
    if task.folds:
        return task.losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(outputs.shape[:2])
    return over_clients(task.losses, outputs, y)


def shares(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What each real example counts in its batch's mean, [A, B]; padding repeats a real one and counts nothing."""
    return mask.to(dtype) / mask.sum(1, keepdim=True).clamp_min(1)


def over_clients(f: Callable[..., Any], *args: Any) -> Any:
    """f for each of K stacked clients. One client alone is not vmapped: any model works, and it is faster."""
    k = next(v for v in tree_leaves(args)).shape[0]
    if k > 1:
        return vmap(f, randomness="different")(*args)
    return tree_map(lambda v: v[None], f(*tree_map(lambda v: v[0], args)))


def over_desk(f: Callable[..., Any], desk: Desk, *args: Any) -> Any:
    """f(start, ...) for each client of a desk: one start for all, or each client's own."""
    if desk.start.dim() == 1:
        return over_clients(partial(f, desk.start), *args)
    return over_clients(f, desk.start, *args)


def turn_of(
    fed: Federation, name: str, start: Tensor, given: Given, lr: Rate, began: Tensor | None = None, **end: Any
) -> Turn:
    """One client's turn as a local part sees it."""
    brief, memory, stats, buffers = given
    own = brief[name], memory[name], stats
    return Turn(fed.task, fed.training, start, buffers, *own, lr, start if began is None else began, **end)


def given_to(fed: Federation, errand: Errand, stats: Arrays) -> Given:
    """What the local parts of K clients see: briefs, memories, measurements, received buffers, [K, ...] each."""
    return errand.brief, {n: errand.memory[n] for n in fed.recipe.locals()}, stats, errand.buffers


def gathered(clients: Clients, rows: Tensor) -> Arrays:
    """The examples of A batches, [A, B, ...], from their row numbers, [B, A]: in the order that folding wants."""
    flat = rows.flatten()
    x, y = (v.index_select(0, flat).unflatten(0, rows.shape).transpose(0, 1) for v in (clients.x, clients.y))
    return {"x": x, "y": y}


def with_hook(fed: Federation, hook: str) -> dict[str, Local]:
    """The local parts that have a hook of their own."""
    return {n: p for n, p in fed.recipe.locals().items() if getattr(type(p), hook) is not getattr(Local, hook)}


def begin(fed: Federation, start: Tensor, lr: float, given: Given) -> Tensor:
    """Where one client's training starts, [P]."""
    w = start
    for n, part in with_hook(fed, "begin").items():
        w = shaped(part, "begin", part.begin(w, turn_of(fed, n, start, given, lr)), start.shape, "a tensor [P]")
    return w


def _outputs(fed: Federation, name: str, part: Local, lr: Rate, start: Tensor, outputs: Tensor, given: Given) -> Tensor:
    return part.outputs(outputs, turn_of(fed, name, start, given, lr))


def _penalty(
    fed: Federation, name: str, part: Local, lr: Rate, start: Tensor, w: Tensor, given: Given, seen: Arrays
) -> Tensor:
    return scalar(part, "penalty", part.penalty(w, turn_of(fed, name, start, given, lr), Batch(**seen)))


def _corrected(fed: Federation, name: str, part: Local, gradient: Tensor, desk: Desk) -> Tensor:
    """The gradients of A clients as a part corrects them, [A, P]."""
    if type(part).correct is Local.correct:
        return gradient
    if part.elementwise:  # a client's scalars become columns, and nothing need be vmapped
        given = tree_map(lambda v: v[:, None] if v.dim() == 1 else v, desk.given)
        corrected = part.correct(gradient, desk.w, turn_of(fed, name, desk.start, given, desk.lr))
        return shaped(part, "correct", corrected, gradient.shape, "a tensor like the gradient")

    def alone(start: Tensor, gradient: Tensor, w: Tensor, given: Given) -> Tensor:
        corrected = part.correct(gradient, w, turn_of(fed, name, start, given, desk.lr))
        return shaped(part, "correct", corrected, gradient.shape, "a tensor like the gradient")

    return over_desk(alone, desk, gradient, desk.w, desk.given)


def _changes(fed: Federation, ids: Sequence[int], number: int, schedule: Schedule) -> Tensor | None:
    """How the images of each client's batches are changed, [S, B, K, 3]; nothing where they are not."""
    if fed.augment is None:
        return None
    drawn = np.zeros((*schedule.index.shape, 3), np.int64)
    for k, i in enumerate(ids):
        steps, batch = int(schedule.steps[k]), int(schedule.count[k].max())
        drawn[k, :steps, :batch] = fed.augment.draw(fed.seed, number, i, steps, batch)
    return torch.from_numpy(drawn.transpose(1, 2, 0, 3).copy()).to(fed.clients.x.device)


def _optimizer(fed: Federation, errand: Errand) -> Arrays:
    """The optimiser state that K clients begin with, [K, ...] each."""
    if not fed.training.reset_optimizer:
        return errand.memory["optimizer"]
    fresh = fed.training.init(errand.start)
    return {n: v.expand(len(errand.ids), *v.shape) for n, v in fresh.items()}
