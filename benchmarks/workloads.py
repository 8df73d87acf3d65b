"""The workloads, in numpy alone: data, first weights, cohorts and batches, the same for every contender.

Cohorts and batches are those that fedstrata draws by itself: the rule is written here a second time, because a rival's
environment has no fedstrata, and tests/test_benchmarks.py checks that both say the same. The data are synthetic, of the
shapes and sizes of the published experiments; speed does not depend on what the pixels show.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Literal
from zlib import crc32

import numpy as np

Set = tuple[np.ndarray, np.ndarray]
"""Examples and labels."""

CLASSES = 10
SHAPES = {
    "logreg": [(10, 784), (10,)],
    "layerwise_cnn": [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 1024), (512,), (10, 512), (10,)],
    "simple_cnn": [
        *[(32, 3, 3, 3), (32,), (64, 32, 3, 3), (64,), (64, 64, 3, 3), (64,)],
        *[(64, 1024), (64,), (10, 64), (10,)],
    ],
}
"""Of each model's parameters, in their order: [outputs, inputs, ...] as torch has them."""


def rng(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """fedstrata's rule: a stream of its own for each seed, purpose, round and client."""
    return np.random.default_rng([seed, crc32(purpose.encode()), round, client])


@dataclass(frozen=True)
class Workload:
    """A federation to train: what it is about, how clients train and what is evaluated after every round."""

    name: str
    about: str
    model: str
    shape: tuple[int, ...]
    clients: int
    examples: int  # of all clients together
    held: dict[str, int]  # examples of each set that no client has
    cohort_size: int
    epochs: int
    batch: int
    lr: float
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    mu: float = 0.0  # of FedProx
    ragged: tuple[int, int] | None = None  # smallest and largest client; None: all alike
    classes_each: int = CLASSES
    evaluates_train: bool = False
    signal: float = 0.05  # distance between classes, in standard deviations of a pixel
    fraction: float = 1.0
    seed: int = 0

    def part(self, fraction: float) -> "Workload":
        """The first part of every client's examples and of every held-out set, for slow machines and quick checks."""
        if not 0 < fraction <= 1:
            raise ValueError(f"the fraction must be above 0 and at most 1; got {fraction}")
        return replace(self, fraction=fraction)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Examples of each client, [N]."""
        whole = np.full(self.clients, self.examples // self.clients)
        if self.ragged:
            whole = _ragged(rng(self.seed, "sizes"), self.clients, self.examples, *self.ragged)
        return np.maximum(1, (whole * self.fraction).astype(int))

    @cached_property
    def starts(self) -> np.ndarray:
        """The row at which each client's examples begin: they lie client after client, [N]."""
        return np.cumsum(self.sizes) - self.sizes

    def cohort(self, round: int) -> np.ndarray:
        """The clients of a round, in rising order."""
        if self.cohort_size == self.clients:
            return np.arange(self.clients)
        return np.sort(rng(self.seed, "select", round).choice(self.clients, self.cohort_size, replace=False))

    def rows(self, client: int) -> np.ndarray:
        """The rows that a client owns."""
        return np.arange(self.starts[client], self.starts[client] + self.sizes[client])

    def orders(self, round: int, client: int) -> list[np.ndarray]:
        """A client's rows in the order of each epoch."""
        stream, rows = rng(self.seed, "batches", round, client), self.rows(client)
        return [stream.permutation(rows) for _ in range(self.epochs)]

    def batches(self, round: int, client: int) -> list[np.ndarray]:
        """The rows of each local step; the last of an epoch may be short."""
        return [o[a : a + self.batch] for o in self.orders(round, client) for a in range(0, len(o), self.batch)]

    def shares(self, round: int) -> np.ndarray:
        """By how much each client of the round counts: in proportion to its examples, [K]."""
        n = self.sizes[self.cohort(round)]
        return n / n.sum()

    def train(self) -> Set:
        """All clients' examples, client after client."""
        x, y = np.empty((self.sizes.sum(), *self.shape), np.float32), np.empty(self.sizes.sum(), np.int64)
        for k in range(self.clients):
            mine = slice(self.starts[k], self.starts[k] + self.sizes[k])
            self._draw("train", k, x[mine], y[mine])
        return x, y

    def held_out(self) -> dict[str, Set]:
        """The sets that no client has."""
        sets = {}
        for name, whole in self.held.items():
            n = max(1, int(whole * self.fraction))
            sets[name] = np.empty((n, *self.shape), np.float32), np.empty(n, np.int64)
            self._draw(name, 0, *sets[name])
        return sets

    def weights(self) -> list[np.ndarray]:
        """The first model, as torch would draw it: uniform within 1 / sqrt(inputs), biases too."""
        stream, drawn, inputs = rng(self.seed, "weights"), [], 1
        for shape in SHAPES[self.model]:
            inputs = prod(shape[1:]) if len(shape) > 1 else inputs
            drawn.append((stream.uniform(-1, 1, shape) / np.sqrt(inputs)).astype(np.float32))
        return drawn

    @cached_property
    def means(self) -> np.ndarray:
        """The mean of each class; those of images are of patches of 4 x 4 pixels, which convolutions can learn."""
        coarse = 4 if len(self.shape) == 3 else 1
        shape = tuple(n // coarse if i else n for i, n in enumerate(self.shape))
        means = rng(self.seed, "means").standard_normal((CLASSES, *shape), dtype=np.float32) * np.float32(self.signal)
        return means.repeat(4, -1).repeat(4, -2) if coarse == 4 else means

    def _draw(self, purpose: str, client: int, x: np.ndarray, y: np.ndarray) -> None:
        """Fill in examples: noise around the mean of each class. A part of a set begins as the whole does."""
        mine = np.arange(CLASSES)
        if purpose == "train" and self.classes_each < CLASSES:
            mine = rng(self.seed, "classes", client=client).choice(CLASSES, self.classes_each, replace=False)
        y[:] = mine[rng(self.seed, f"{purpose} labels", client=client).integers(len(mine), size=len(y))]
        # pixels of 8 bits, as images have them, scaled to variance 1: drawn many times faster than normal ones
        pixels = rng(self.seed, f"{purpose} pixels", client=client).integers(0, 256, x.shape, np.uint8)
        np.multiply(pixels, np.float32(12**0.5 / 255), out=x)
        x += (self.means - np.float32(12**0.5 / 2))[y]


def _ragged(stream: np.random.Generator, clients: int, total: int, low: int, high: int) -> np.ndarray:
    """Log-normal sizes within bounds that add up to the total."""
    raw = stream.lognormal(sigma=0.7, size=clients)
    scales = np.linspace(1, 4 * total / raw.sum(), 4000)
    sums = np.array([np.clip(raw * s, low, high).sum() for s in scales])
    sizes = np.clip(raw * scales[np.searchsorted(sums, total) - 1], low, high).astype(int)
    inside = np.flatnonzero((sizes > low) & (sizes < high))
    sizes[inside] += (total - sizes.sum()) // len(inside)
    sizes[inside[: total - sizes.sum()]] += 1
    return sizes


WORKLOADS = {
    w.name: w
    for w in [
        Workload(
            "A", "250 ragged clients of two classes, 20 a round, logistic regression, FedProx",
            "logreg", (784,), 250, 48_000, {"val": 12_000, "test": 10_000},
            cohort_size=20, epochs=3, batch=20, lr=0.03, momentum=0.9, mu=0.01,
            ragged=(20, 700), classes_each=2, evaluates_train=True,
        ),
        Workload(
            "B", "10 clients of 600, CNN of 582,026 parameters, Adam",
            "layerwise_cnn", (1, 28, 28), 10, 6_000, {"test": 10_000},
            cohort_size=10, epochs=1, batch=16, lr=0.001, optimizer="adam", signal=0.5,
        ),
        Workload(
            "C", "20 clients of 2,500 CIFAR-shaped images, CNN of 122,570 parameters, SGD",
            "simple_cnn", (3, 32, 32), 20, 50_000, {"test": 10_000},
            cohort_size=20, epochs=1, batch=64, lr=0.01, momentum=0.9, weight_decay=5e-4, signal=0.5,
        ),
    ]
}  # fmt: skip
"""The three of the design notes: a tiny model, a middling one and images."""
