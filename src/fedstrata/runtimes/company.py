"""Several runs on one device as one program: the clients of all take their local steps stacked, in one pass.

A small model and a few clients leave most of a GPU idle, and the seeds and methods of a comparison want the same of it.
Each run stays what it is, with its own server, record and checkpoints, in a thread of its own. One of them works at a
time, so that nothing they share gets mixed up. Where a run has its clients take their local steps it waits, and once
all that are still going are there, the thread that keeps the company takes the steps of all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Condition, RLock, Thread
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from fedstrata.clients import Clients, Lengths, Rows
from fedstrata.descent import Desk, Federation, Feed, Given, Steps
from fedstrata.graphs import Captured
from fedstrata.layout import Arrays

R = TypeVar("R")

Make = Callable[..., Steps]
"""How the local steps of a federation are taken, so many clients at a time if that is said."""


@dataclass
class Wish:
    """The local steps that a run is waiting for."""

    desk: Desk
    feed: Feed
    make: Make
    done: bool = False
    error: BaseException | None = None
    seconds: float = 0.0  # its share of what they took


class Company:
    """So many runs that go on together."""

    def __init__(self, runs: int):
        self.going = runs
        lock = RLock()  # who holds it works
        self.turn, self.all_wait = (
            Condition(lock),
            Condition(lock),
        )  # runs wait for the first, who keeps it for the other
        self.wishes: list[Wish] = []
        self.owners: list[Clients] = []  # of each run
        self.sets: list[tuple[Tensor, Tensor]] = []  # what they train and test on; what several have, once
        self.kinds: list[tuple[Federation, Steps]] = []  # local work of different kinds, and who does it
        self.broken = False  # nobody keeps it any more

    @contextmanager
    def member(self) -> Iterator[None]:
        """Within this block, a run of the company."""
        with self.turn:
            token = _SEAT.set(Seat(self))
            try:
                yield
            finally:
                _SEAT.reset(token)
                self.going -= 1
                self.tell()

    def keep(self) -> None:
        """Take the local steps of all until no run is left; by one thread, as captured graphs want it."""
        with self.turn:
            while self.going:
                self.all_wait.wait_for(lambda: len(self.wishes) >= self.going)
                self._grant_all()
                self.turn.notify_all()
            for _, steps in self.kinds:
                if isinstance(steps, Captured):
                    steps.close()

    def tell(self) -> None:
        """Once all runs that are going wait, wake who keeps the company; nobody is woken for nothing."""
        if len(self.wishes) >= self.going:
            self.all_wait.notify()

    def break_up(self) -> None:
        """Nobody takes steps any more: the runs end where they wait, or come to wait."""
        self.broken = True
        with self.turn:
            self.turn.notify_all()

    def _grant_all(self) -> None:
        """Take the steps of all that wait; what they brought is let go of before they go on."""
        wishes, self.wishes = self.wishes, []
        for some in _alike(wishes):
            self._grant(some)

    def _grant(self, wishes: Sequence[Wish]) -> None:
        """Take the steps of runs that do the same, and tell each what became of them."""
        began, clients = perf_counter(), [len(w.desk.w) for w in wishes]
        try:
            self._take(wishes, sum(clients))
            _await(wishes[0].desk.w.device)  # or whoever goes on first waits for the steps of all
        except Exception as e:  # the runs raise it, each where it waits
            for wish in wishes:
                wish.error = e
        took = perf_counter() - began
        for wish, count in zip(wishes, clients, strict=True):
            wish.seconds, wish.done = took * count / sum(clients), True

    def _take(self, wishes: Sequence[Wish], clients: int) -> None:
        fed = wishes[0].feed.fed
        everyone = replace(fed, clients=self.examples, task=replace(fed.task, compiled=False))
        steps = next((s for kind, s in self.kinds if _same_work(kind, fed)), None)
        if steps is None:
            steps = wishes[0].make(everyone, clients)
            self.kinds.append((fed, steps))
        offsets = [self.begins[_identity(w.feed.fed.clients)] for w in wishes]
        desk, feed, back = joined(everyone, [w.desk for w in wishes], [w.feed for w in wishes], offsets)
        steps(desk, feed)
        for wish, mine in zip(wishes, back, strict=True):
            out, whole = ((d.w, d.buffers, d.optimizer) for d in (wish.desk, desk))
            tree_map(lambda o, v, mine=mine: o.copy_(v[mine]), out, whole)

    @cached_property
    def begins(self) -> dict[tuple[int, int], int]:
        """Where the examples of each run begin among those of all, by their identity: many runs have the same."""
        found, begin = dict[tuple[int, int], int](), 0
        for clients in self.owners:
            if _identity(clients) not in found:
                found[_identity(clients)] = begin
                begin += len(clients.x)
        return found

    @cached_property
    def examples(self) -> Clients:
        """The clients of all runs; every example is there once."""
        distinct = list({_identity(c): c for c in self.owners}.values())
        x, y = (vs[0] if len(vs) == 1 else torch.cat(vs) for vs in ([c.x for c in distinct], [c.y for c in distinct]))
        return Clients(x, y, Rows(r + self.begins[_identity(c)] for c in self.owners for r in c.rows))


class Seat:
    """The place of a run in its company."""

    def __init__(self, company: Company):
        self.company = company
        self.waited = 0.0  # seconds, for others

    def steps(self, fed: Federation, make: Make) -> Steps:
        """Takes the local steps of this run with those of the others; of a run that begins within one, by itself."""
        if "begins" in vars(self.company):
            return make(fed)
        self.company.owners.append(fed.clients)
        return partial(self._wait, make)

    def same(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The same examples and targets; where another run has them, its tensors."""
        known = self.company.sets
        found = next((pair for pair in known if _equal(pair[0], x) and _equal(pair[1], y)), None)
        if found is None:
            known.append(found := (x, y))
        return found

    def _wait(self, make: Make, desk: Desk, feed: Feed) -> None:
        wish, turn, began = Wish(desk, feed, make), self.company.turn, perf_counter()
        self.company.wishes.append(wish)
        self.company.tell()
        turn.wait_for(lambda: wish.done or self.company.broken)
        self.waited += perf_counter() - began - wish.seconds
        if not wish.done:
            raise KeyboardInterrupt
        if wish.error is not None:
            raise wish.error


_SEAT: ContextVar[Seat | None] = ContextVar("seat", default=None)


def seat() -> Seat | None:
    """The place of this run in its company, if it has one."""
    return _SEAT.get()


def shared(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The same examples and targets; where another run of the company has them, its tensors."""
    here = seat()
    return (x, y) if here is None else here.same(x, y)


def clock() -> float:
    """Seconds that go on only while somebody works for this run: waiting for others does not count."""
    here = seat()
    return perf_counter() - (here.waited if here is not None else 0.0)


def together(runs: Sequence[Callable[[], R]]) -> list[R | BaseException]:
    """What these runs give, gone on with as one company; of one that failed, its error."""
    company, found = Company(len(runs)), dict[int, R | BaseException]()

    def go(i: int) -> None:
        try:
            with company.member():
                found[i] = runs[i]()
        except BaseException as e:
            found[i] = e

    threads = [Thread(target=go, args=(i,), daemon=True) for i in range(len(runs))]
    try:
        for thread in threads:
            thread.start()
        company.keep()
    except BaseException:  # Ctrl-C for the second time, say
        company.break_up()
        raise
    finally:
        for thread in threads:
            if thread.is_alive():
                thread.join()
    return [found[i] for i in range(len(runs))]


def joined(
    fed: Federation, desks: Sequence[Desk], feeds: Sequence[Feed], offsets: Sequence[int]
) -> tuple[Desk, Feed, list[Tensor]]:
    """One desk and its batches for the clients of several, sorted by their steps, and where each desk's clients are.

    `fed` has the examples of all; those of each begin at its offset.
    """
    device, lengths = desks[0].w.device, Lengths.joined([f.schedule for f in feeds])
    order = np.argsort(-lengths.steps, kind="stable")
    there = torch.from_numpy(order).to(device)

    def both(*parts: Tensor) -> Tensor:
        return torch.cat(parts)[there]

    start = both(*(d.start.expand(len(d.w), -1) for d in desks))
    desk = Desk(start, desks[0].lr, *tree_map(both, *(_own(fed, d) for d in desks)))
    rows = beside([f.rows + offset for f, offset in zip(feeds, offsets, strict=True)])[:, :, there]
    noise = [f.noise for f in feeds if f.noise is not None]
    changes = [f.changes for f in feeds if f.changes is not None]
    changed = beside(changes)[:, :, there] if changes else None
    feed = Feed(fed, Lengths(lengths.count[order]), rows, both(*noise) if noise else None, changed)
    back = torch.from_numpy(np.argsort(order)).to(device)
    return desk, feed, list(back.split([len(d.w) for d in desks]))


def beside(parts: Sequence[Tensor]) -> Tensor:
    """What several runs have of each step, row and client, [S, B, K, ...], in one; padding repeats the first row."""
    steps, width = (max(p.shape[i] for p in parts) for i in (0, 1))
    whole = parts[0].new_zeros(steps, width, sum(p.shape[2] for p in parts), *parts[0].shape[3:])
    begin = 0
    for part in parts:
        s, b, k = part.shape[:3]
        whole[:s, :, begin : begin + k] = part[:, :1]
        whole[:s, :b, begin : begin + k] = part
        begin += k
    return whole


def _own(fed: Federation, desk: Desk) -> tuple[Given, Tensor, Arrays, Arrays]:
    """What a desk has of each client; of measurements those that local parts use, whatever the server has besides."""
    brief, memory, stats, buffers = desk.given
    used = frozenset({"examples"}).union(*(p.needs for p in fed.recipe.local))
    given = brief, memory, {n: stats[n] for n in sorted(used & stats.keys())}, buffers
    return given, desk.w, desk.buffers, desk.optimizer


def _alike(wishes: Sequence[Wish]) -> list[list[Wish]]:
    """The wishes that can be granted together."""
    groups: list[list[Wish]] = []
    for wish in wishes:
        fits = (g for g in groups if _fit(g[0], wish))
        if (group := next(fits, None)) is None:
            groups.append([wish])
        else:
            group.append(wish)
    return groups


def _fit(a: Wish, b: Wish) -> bool:
    """Whether the clients of both do the same, and what they have can be stacked: counts of fewer classes cannot."""
    return bool(a.desk.lr == b.desk.lr) and _same_work(a.feed.fed, b.feed.fed) and _form(a) == _form(b)


def _form(wish: Wish) -> Sequence[Any]:
    leaves, form = tree_flatten(_own(wish.feed.fed, wish.desk))
    return [form, *((v.shape[1:], v.dtype) for v in leaves)]


def _await(device: torch.device) -> None:
    """Wait until a GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b))


def _identity(clients: Clients) -> tuple[int, int]:
    """The same for the same examples; those of a run that flips labels have targets of their own."""
    return id(clients.x), id(clients.y)


def _same_work(a: Federation, b: Federation) -> bool:
    """Whether clients of both take the same steps from where they are: the server's half may differ."""
    same = a.recipe.local == b.recipe.local and a.training == b.training and a.augment == b.augment
    one, other = a.task, b.task
    same = same and one.layout.tensors == other.layout.tensors and one.layers == other.layers
    same = same and one.loss is other.loss and one.folds == other.folds
    frozen = one.frozen.keys() == other.frozen.keys()
    return same and frozen and all(torch.equal(v, other.frozen[n]) for n, v in one.frozen.items())
