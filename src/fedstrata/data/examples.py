"""A data set as plain tensors, and ways to set some of it aside."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedstrata.errors import DataError, check
from fedstrata.rng import rng

Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples to train on and to test on, perhaps some to validate on; the cut between them is fixed."""

    train: Examples
    test: Examples
    classes: int
    val: Examples | None = None
    owner: np.ndarray | None = None  # of each training example, the user or domain it comes from, if that is known
    vocabulary: int | None = None  # the number of words, where examples are word numbers
    names: tuple[str, ...] | None = None  # of the classes, where folders of pictures or words name them
    counting: tuple[str, ...] = ()  # features with another whole number in every row, which may be names of the rows
    scaled: bool = False  # the columns of a table have mean 0 and deviation 1 over what is trained on
    columns: tuple[str, ...] = ()  # the names of the features, where a table gives them

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.train[0].shape[1:])

    def with_val(self, share: float) -> "Dataset":
        """The same with this share of the training examples set aside to validate on, whatever the seed of a run."""
        check(0 < share < 1, f"val must be in (0, 1); got {share}")
        order = rng(0, "validation").permutation(len(self.train[1]))
        cut = round(share * len(order))
        val, train = (np.sort(rows) for rows in (order[:cut], order[cut:]))
        if not len(val) or not len(train):
            raise DataError(f"val = {share} leaves nothing to train or to validate on; there are {len(order)} examples")
        owner = self.owner[train] if self.owner is not None else None
        cut = replace(self, train=taken(self.train, train), val=taken(self.train, val), owner=owner)
        return cut.standardised() if self.scaled else cut

    def standardised(self) -> "Dataset":
        """Features of mean 0 and deviation 1 over the training examples; one that is constant there is 0."""
        x = self.train[0].double()
        power = torch.frexp(x.abs().amax(0)).exponent  # squares of the largest numbers would be infinite
        std, mean = torch.std_mean(torch.ldexp(x, -power), 0, correction=0)
        std = torch.where(x.amin(0) < x.amax(0), std, torch.inf)

        def scaled(examples: Examples) -> Examples:
            return ((torch.ldexp(examples[0].double(), -power) - mean) / std).float(), examples[1]

        val = None if self.val is None else scaled(self.val)
        return replace(self, train=scaled(self.train), test=scaled(self.test), val=val, scaled=True)


def taken(examples: Examples, rows: np.ndarray) -> Examples:
    """Some of the examples."""
    index = torch.from_numpy(rows)
    return examples[0][index], examples[1][index]


def held_out(examples: Examples, count: int, tail: float = 1.0) -> tuple[Examples, Examples]:
    """Take about `count` examples out of a set: (those, the rest).

    As many of each class as of any other; with a tail below 1, floor(count / C * tail^(c / (C - 1))) of class c.
    """
    x, y = examples
    classes = int(y.max()) + 1
    wanted = [int(count / classes * tail ** (c / max(1, classes - 1)) + 1e-9) for c in range(classes)]
    rows = [(y == c).nonzero().flatten() for c in range(classes)]
    if count < classes or any(len(r) < n for r, n in zip(rows, wanted, strict=True)):
        least = min(map(len, rows))
        most = classes * least
        could = f"choose it from {classes} to {most}, e.g. proxy={most}" if least else "some class has none of them"
        raise DataError(f"proxy = {count} cannot be had, class by class, from {len(y)} test examples; {could}")
    chosen = torch.cat([r[:n] for r, n in zip(rows, wanted, strict=True)])
    rest = torch.ones(len(y), dtype=torch.bool)
    rest[chosen] = False
    return (x[chosen], y[chosen]), (x[rest], y[rest])
