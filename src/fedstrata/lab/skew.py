"""How clients differ: in their labels, their sizes, their features, beyond what chance makes of an IID split."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.clients import Clients, Rows
from fedstrata.partition import describe
from fedstrata.partition.describe import has_labels
from fedstrata.rng import rng

ROWS = 5_000
"""Examples that the features are looked at on."""

LABELS, STRONG, SIZES, FEATURES = 0.1, 0.4, 0.5, 0.03
"""Above which labels are skewed, strongly so, sizes differ, features are shifted."""


@dataclass(frozen=True)
class Skew:
    """What kind of heterogeneity a split has."""

    facts: dict[str, Any]  # of `describe`
    labels: float  # mean total variation between a client's labels and all, less what dealing them at random gives
    sizes: float  # standard deviation of the clients' sizes over their mean
    features: float  # share of the features' variance within a class that is between clients, beyond chance

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of label, size and feature that are beyond their bounds, in this order."""
        found = {"label": self.labels > LABELS, "size": self.sizes > SIZES, "feature": self.features > FEATURES}
        return tuple(kind for kind, is_so in found.items() if is_so)

    def in_words(self) -> list[str]:
        """A sentence on each kind."""
        strong = "strongly skewed" if self.labels > STRONG else "skewed"
        said = strong if "label" in self.kinds else "much the same"
        classes = self.facts.get("effective_classes")
        seen = f"; a client has {classes:.1f} classes in effect" if classes is not None else ""
        size = "very different" if "size" in self.kinds else "similar"
        span = f"{self.facts['smallest']} to {self.facts['largest']}"
        shift = "shifted from client to client" if "feature" in self.kinds else "alike within a class"
        return [
            f"Labels are {said}: {self.labels:.2f} from the whole beyond chance{seen}.",
            f"Sizes are {size}: {span} examples, a spread of {self.sizes:.2f} times the mean.",
            f"Features are {shift}: {max(0.0, 100 * self.features):.1f} % of their variance is between clients.",
        ]


def skew(clients: Clients, numbers: bool = True, seed: int = 0) -> Skew:
    """Look at a split; `numbers` says that features are quantities, and not the numbers of words."""
    facts, sizes = describe(clients), clients.sizes
    labels = 0.0
    if has_labels(clients):
        labels = facts["label_distance"] - _by_chance(clients, seed)
    return Skew(facts, labels, float(sizes.std() / sizes.mean()), feature_shift(clients, seed) if numbers else 0.0)


def _by_chance(clients: Clients, seed: int) -> float:
    """The label distance of clients of the same sizes that get their examples at random."""
    dealt = rng(seed, "skew").permutation(clients.rows.flat)
    ends = np.cumsum(clients.sizes)[:-1]
    return float(describe(Clients(clients.x, clients.y, Rows(np.split(dealt, ends))))["label_distance"])


def feature_shift(clients: Clients, seed: int = 0) -> float:
    """The share of the features' variance within a class that is between clients; about 0 where chance made it.

    Omega squared of an analysis of variance, of the features and of their distances to their class's mean, whichever
    is larger: clients may differ in where their features are, or in how far they spread.
    """
    rows = clients.rows.flat
    owner = np.repeat(np.arange(len(clients)), clients.sizes)
    some = np.sort(rng(seed, "features").permutation(len(rows))[:ROWS])
    rows, owner = rows[some], owner[some]
    x = clients.x[rows].double().flatten(1).numpy()
    labels = clients.y[rows].numpy() if has_labels(clients) else np.zeros(len(rows), int)
    group = np.unique(labels, return_inverse=True)[1].reshape(-1)
    cell = np.unique(np.stack([group, owner], 1), axis=0, return_inverse=True)[1].reshape(-1)
    spread = np.abs(x - _means(x, group)[group])
    return max(_omega_squared(x, group, cell), _omega_squared(spread, group, cell))


def _omega_squared(x: NDArray[Any], group: NDArray[Any], cell: NDArray[Any]) -> float:
    """(SSB - df MSW) / (SST + MSW), of cells within groups, all features together."""
    cells, classes = int(cell.max()) + 1, int(group.max()) + 1
    total = float(np.square(x - _means(x, group)[group]).sum())
    within = float(np.square(x - _means(x, cell)[cell]).sum())
    free = len(x) - cells
    if free <= 0 or total == 0:
        return 0.0
    noise = within / free
    return (total - within - (cells - classes) * noise) / (total + noise)


def _means(x: NDArray[Any], of: NDArray[Any]) -> NDArray[Any]:
    """The mean row of each cell, [cells, features]."""
    sums = np.zeros((int(of.max()) + 1, x.shape[1]))
    np.add.at(sums, of, x)
    return sums / np.bincount(of)[:, None]
