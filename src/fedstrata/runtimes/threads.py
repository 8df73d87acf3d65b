"""How many threads torch uses: one for tiny work, where two collapse as soon as the machine is shared."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedstrata.train import Federation

TINY = 2e7
"""Multiplications of a stacked step below which one thread is used; parameters x batch x clients, roughly."""


@contextmanager
def fitting_threads(fed: Federation, chunk: int | None) -> Iterator[None]:
    """Within this block torch uses one thread if the local steps are tiny, else as many as it did before."""
    batch = fed.training.batch or int(fed.clients.sizes.max())
    work = fed.task.layout.size * batch * min(len(fed.clients), chunk or len(fed.clients))
    before = torch.get_num_threads()
    torch.set_num_threads(1 if work < TINY else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
