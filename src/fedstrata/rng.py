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
def seeded(seed: int) -> Iterator[None]:
    """Run a block with torch's generators seeded, and put them back as they were afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
