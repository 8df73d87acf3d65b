"""What a node has: its client's name and examples, from a file of its own or a part of a public data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstrata.clients import Clients, Rows
from fedstrata.data import load_own
from fedstrata.data.examples import Examples, taken
from fedstrata.errors import SettingError, near
from fedstrata.experiment import Experiment

KEYS = {"client", "data", "label", "classes", "memory", "device", "partition-id", "num-partitions"}
"""What a node's configuration may say."""


class ConfigError(SettingError):
    """About the node's configuration, in words that the server may see: no path, and nothing of the data."""


@dataclass(frozen=True, eq=False)
class Holding:
    """A client's examples, to train on and to test on; the latter where they are its own."""

    name: str
    train: Examples
    test: Examples | None
    classes: int
    partition: int | None = None  # which part of the experiment's data set it is
    vocabulary: int | None = None
    names: tuple[str, ...] | None = None  # of the classes, where folders of pictures name them
    columns: tuple[str, ...] = ()  # the names of its features, where a table gives them

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.train[0].shape[1:])

    def labels(self, classes: int) -> Tensor:
        """How many of its examples are of each class, [C]."""
        return torch.bincount(self.train[1], minlength=classes).double()

    def clients(self, client: int) -> Clients:
        """Its examples as those of one client among others that have none here."""
        none = torch.arange(0).numpy()
        return Clients(*self.train, Rows([*[none] * client, torch.arange(len(self.train[1])).numpy()]))


def holding(config: Mapping[str, Any], exp: Experiment, columns: Sequence[str] = ()) -> Holding:
    """What a node with this configuration has; columns of a table in the order that was agreed on, if one was."""
    for key in config:
        if key not in KEYS:
            raise ConfigError(f"the node-config has no key {key!r}; {near(key, KEYS)}")
    if "data" in config:
        return _own(config, exp, str(config.get("client", "")), columns)
    if "partition-id" not in config:
        said = 'client="hospital-a" data="/path/to/file.csv"'
        raise ConfigError(f"the node-config says neither data nor partition-id; say which data is here, e.g. {said}")
    return _part(exp, int(config["partition-id"]), str(config.get("client", "")))


def _own(config: Mapping[str, Any], exp: Experiment, name: str, columns: Sequence[str]) -> Holding:
    if not name:
        raise ConfigError("the node-config has data but no client: give this client a name that stays, client=...")
    path, label = Path(str(config["data"])).expanduser(), str(config.get("label", exp.label))
    words = tuple(w.strip() for w in str(config.get("classes", "")).split(",") if w.strip())
    how: dict[str, Any] = {"classes": words, "without": exp.left_out, "features": columns}
    data = load_own(path, label, exp.client, alone=True, **how)
    return Holding(name, data.train, data.test, data.classes, names=data.names, columns=data.columns)


@lru_cache(4)
def _part(exp: Experiment, i: int, name: str) -> Holding:
    """A part of the experiment's own data, for trials and tests: every node makes the same split."""
    data = exp.dataset()
    clients = exp.clients(data)
    if not 0 <= i < len(clients):
        raise ConfigError(f"partition-id is {i}, but the experiment has clients 0 to {len(clients) - 1}")
    mine = taken((clients.x, clients.y), clients.rows[i])
    return Holding(name or str(i), mine, None, data.classes, i, data.vocabulary)
