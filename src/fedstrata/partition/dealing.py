"""Hands of examples: the rows of each class, whole-number portions of them, and clients that have too few."""

import numpy as np

from fedstrata.errors import DataError

TRIES = 100
"""Draws before clients below the minimum size are given what they lack."""


def by_class(y: np.ndarray, who: str) -> list[np.ndarray]:
    """The rows of each class that occurs, in the order of labels."""
    if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1:
        raise DataError(f"{who} splits by class and needs whole-number labels; got {y.dtype} {y.shape}")
    order = np.argsort(y, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(y[order])) + 1)


def portions(alpha: float, clients: int, count: int, draw: np.random.Generator) -> np.ndarray:
    """So many examples in proportions p ~ Dir(alpha) over clients, as whole numbers, [N]."""
    p = draw.dirichlet(np.full(clients, min(alpha, 1e9)))  # an even split; far beyond, numpy's draws overflow
    ends = np.rint(np.cumsum(p)[:-1] * count).astype(int)
    return np.diff(ends, prepend=0, append=count)


def deal(pools: list[np.ndarray], counts: np.ndarray, draw: np.random.Generator) -> list[np.ndarray]:
    """The rows of each client, who gets counts[k, c] of the rows of class c."""
    cut = [np.split(draw.permutation(p), np.cumsum(n)[:-1]) for p, n in zip(pools, counts.T, strict=True)]
    return [np.concatenate(hand) for hand in zip(*cut, strict=True)]


def at_least(least: int, counts: np.ndarray) -> np.ndarray:
    """The same counts, but that small ones take what they lack from the largest, as long as that has more."""
    counts = counts.copy()
    for k in np.flatnonzero(counts < least):
        while counts[k] < least < counts.max():
            counts[counts.argmax()] -= 1
            counts[k] += 1
    return counts


def topped_up(rows: list[np.ndarray], min_size: int) -> list[np.ndarray]:
    """Give clients that have too few what they lack, one example at a time from the client that has most."""
    rows = list(rows)
    sizes = np.array([len(r) for r in rows])
    for k in np.flatnonzero(sizes < min_size):
        while sizes[k] < min_size:
            rich = sizes.argmax()
            rows[k], rows[rich] = np.append(rows[k], rows[rich][-1]), rows[rich][:-1]
            sizes[k] += 1
            sizes[rich] -= 1
    return rows
