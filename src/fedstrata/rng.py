"""Randomness: every draw comes from (seed, purpose, round, client) and from nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

import numpy as np
import torch


def rng(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """A stream of its own for each purpose, round and client, whatever ran before it and wherever it runs."""
    return np.random.default_rng([seed, crc32(purpose.encode()), round, client])


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A seed for what draws from torch's own generator: initial weights, dropout."""
    return int(rng(seed, purpose, round, client).integers(2**63))


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Run a block with torch's generators seeded, and put them back as they were afterwards.

    The CPU's and that of one device: torch.manual_seed looks for every kind of device there is, which takes longer than
    a step of a small model.
    """
    own = generators(device)
    before = [g.get_state() for g in own]
    for g in own:
        g.manual_seed(seed)
    try:
        yield
    finally:
        for g, state in zip(own, before, strict=True):
            g.set_state(state)


def generators(device: torch.device | None = None) -> list[torch.Generator]:
    """torch's own: the CPU's, and that of a GPU."""
    if device is None or device.type != "cuda":
        return [torch.default_generator]
    torch.cuda.init()
    return [torch.default_generator, torch.cuda.default_generators[device.index or 0]]
