"""How many threads torch uses: one for tiny work, where two collapse as soon as the machine is shared."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

TINY = 2e7
"""Multiplications of a cohort's step below which one thread is used."""


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
def fitting_threads(work: float) -> Iterator[None]:
    """One thread for steps of less than so many multiplications, else as many as before."""
    token = _ALLOWED.set(allowed())
    try:
        with threads(1 if work < TINY else torch.get_num_threads()):
            yield
    finally:
        _ALLOWED.reset(token)


def allowed() -> int:
    """How many threads may be used by what does not wait for each other, also where torch uses one."""
    return _ALLOWED.get() or torch.get_num_threads()
