"""Threads: torch uses one for tiny work, where two collapse as soon as the machine is shared; others take pieces."""

import os
from _thread import LockType, allocate_lock
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import pairwise
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import torch

J = TypeVar("J")
R = TypeVar("R")

TINY = 2e7
"""Multiplications of a cohort's step below which one thread is used."""


def cores() -> int:
    """The processors that this process may use: those it is given, or fewer where it shares them with others."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(there, _SHARE.get("cores", there))


def share(count: int) -> None:
    """From now on, this process and those it makes use so many processors: others have the rest."""
    _SHARE["cores"] = count
    torch.set_num_threads(count)


_SHARE: dict[str, int] = {}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within this block torch uses so many threads."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_ALLOWED: ContextVar[int | None] = ContextVar("allowed", default=None)


@contextmanager
def quiet(when: bool = True) -> Iterator[None]:
    """Within this block torch uses one thread, and `spread` as many as before.

    Torch wakes its threads for the square roots of a few numbers too, and they keep the cores busy for a while after.
    """
    token = _ALLOWED.set(allowed())
    try:
        with threads(1 if when else torch.get_num_threads()):
            yield
    finally:
        _ALLOWED.reset(token)


def fitting_threads(work: float) -> AbstractContextManager[None]:
    """One thread for steps of less than so many multiplications, else as many as before."""
    return quiet(work < TINY)


def allowed() -> int:
    """How many threads may be used by what does not wait for each other, also where torch uses one."""
    return _ALLOWED.get() or torch.get_num_threads()


def spread(work: Callable[[J], R], jobs: Sequence[J], count: int) -> list[R]:
    """[work(j) for j in jobs], by so many threads of which this is one: who is done early takes the next job."""
    helpers = min(count, len(jobs)) - 1
    if helpers < 1:
        return [work(job) for job in jobs]
    left, found = iter(list(enumerate(jobs))), dict[int, R]()

    def take() -> None:
        try:
            for i, job in left:
                found[i] = work(job)
        finally:
            list(left)  # after an error nobody begins another

    _together(take, helpers)
    return [found[i] for i in range(len(jobs))]


def pieces(n: int, count: int) -> list[tuple[int, int]]:
    """Where about so many equal pieces of 0 to n begin and end."""
    count = max(1, min(n, count))
    return list(pairwise(n * i // count for i in range(count + 1)))


def _together(take: Callable[[], None], helpers: int) -> None:
    """Have this done here and by so many other threads; those that have not begun when it is done here need not."""
    begun, errors = list[LockType](), list[BaseException]()

    def help() -> None:
        ended = allocate_lock()
        ended.acquire()
        begun.append(ended)
        try:
            take()
        except BaseException as e:
            errors.append(e)
        finally:
            ended.release()

    _call(help, helpers)
    try:
        take()
    finally:
        for ended in begun:
            ended.acquire()
    if errors:
        raise errors[0]


def _call(help: Callable[[], None], times: int) -> None:
    """Have so many threads of this process do this, each as soon as it can; it must not raise.

    A ThreadPoolExecutor does more for every order, with a future, its condition and several locks: a pass over a small
    model's updates, of 200 to 600 microseconds, took 10 to 50 longer.
    """
    orders, crew = _crew(os.getpid())
    while len(crew) < times:
        thread = Thread(target=_serve, args=(orders,), name="fedstrata", daemon=True)
        thread.start()
        crew.append(thread)
    for _ in range(times):
        orders.put(help)


def _serve(orders: "SimpleQueue[Callable[[], None]]") -> None:
    while True:
        orders.get()()


@cache
def _crew(_process: int) -> tuple["SimpleQueue[Callable[[], None]]", list[Thread]]:
    """The threads of this process, and where they wait: those of the one that it was forked from are not here."""
    return SimpleQueue(), []
