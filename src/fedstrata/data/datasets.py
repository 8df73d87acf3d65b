"""Named data sets as plain tensors."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstrata.errors import DataError, near
from fedstrata.rng import rng

Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples to train on, to validate on and to test on; the cut between them is fixed."""

    train: Examples
    val: Examples
    test: Examples
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.train[0].shape[1:])


def digits() -> Dataset:
    """1,797 handwritten digits of 8x8 pixels, as scikit-learn ships them: 1,257 to train on, 180 and 360 held out."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = torch.from_numpy(rng(0, "digits").permutation(len(y)))
    images = (torch.from_numpy(x).float().view(-1, 1, 8, 8)[order] / 16 - 0.3053) / 0.3760  # mean 0, deviation 1
    labels = torch.from_numpy(y).long()[order]
    test, val, train = (slice(0, 360), slice(360, 540), slice(540, None))
    return Dataset(*((images[s], labels[s]) for s in (train, val, test)), classes=10)


DATASETS: dict[str, Callable[[], Dataset]] = {"digits": digits}


def dataset(name: str) -> Dataset:
    """The data set of this name."""
    if name not in DATASETS:
        raise DataError(f"no data set is called {name!r}; {near(name, DATASETS)}")
    return DATASETS[name]()


def held_out(examples: Examples, count: int, tail: float = 1.0) -> tuple[Examples, Examples]:
    """Take about `count` examples out of a set: (those, the rest).

    As many of each class as of any other; with a tail below 1, floor(count / C * tail^(c / (C - 1))) of class c.
    """
    x, y = examples
    classes = int(y.max()) + 1
    wanted = [int(count / classes * tail ** (c / max(1, classes - 1)) + 1e-9) for c in range(classes)]
    rows = [(y == c).nonzero().flatten() for c in range(classes)]
    if count < classes or any(len(r) < n for r, n in zip(rows, wanted, strict=True)):
        raise DataError(f"proxy = {count} cannot be had, class by class, from {len(y)} test examples")
    taken = torch.cat([r[:n] for r, n in zip(rows, wanted, strict=True)])
    rest = torch.ones(len(y), dtype=torch.bool)
    rest[taken] = False
    return (x[taken], y[taken]), (x[rest], y[rest])
