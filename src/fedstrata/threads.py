"""How many threads torch uses: one for tiny work, where two collapse as soon as the machine is shared."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def fitting_threads(work: float) -> Iterator[None]:
    """One thread for steps of less than so many multiplications, else as many as before."""
    with threads(1 if work < TINY else torch.get_num_threads()):
        yield
