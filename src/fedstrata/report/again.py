"""What experiment.toml lets one make again: who owned what, and how the final model does on each client's data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from fedstrata.clients import Clients
from fedstrata.data import Dataset, is_own
from fedstrata.data.download import missing
from fedstrata.data.sources import SOURCES
from fedstrata.errors import FedstrataError, in_short
from fedstrata.evaluate import client_scores, score
from fedstrata.experiment import Experiment
from fedstrata.models import model
from fedstrata.partition import ByOwner
from fedstrata.report.folders import RunFolder
from fedstrata.task import Task, buffers_of

QUICK = 1e9
"""Examples times parameters up to which the final model is scored again, which takes a second or so."""


@dataclass(frozen=True, eq=False)
class Split:
    """Who owned what in a run, or why that cannot be told."""

    title: str
    clients: Clients | None = None
    why_not: str = ""
    classes: Sequence[str] | None = None  # their names, where the data has any
    owners: Sequence[str] | None = None  # the names of the clients, where the data says whose it is


@dataclass(eq=False)
class Again:
    """Makes data again, each set once."""

    loaded: dict[tuple[Any, ...], Dataset] = field(default_factory=dict)

    def split(self, run: RunFolder) -> Split:
        """Who owned what."""
        settings = run.settings
        try:
            exp, data = self._experiment(run)
            exp = exp.settled(data)
            name = exp.data.rstrip("/").rpartition("/")[2] if is_own(exp.data) else exp.data
            clients = exp.clients(data)
            owners = _owners(clients, data) if isinstance(exp.partition, ByOwner) else None
            title = f"{name}, {exp.partition!r}, seed {exp.seed}"
            return Split(title, clients, classes=data.names, owners=owners)
        except FedstrataError as e:
            return Split(str(settings.get("data", "data given in Python")), why_not=str(e))
        except Exception as e:  # whatever a file of somebody's does, the rest of the page is worth having
            return Split(str(settings.get("data")), why_not=in_short(e))

    def scores(self, run: RunFolder) -> tuple[np.ndarray, np.ndarray] | None:
        """The final model's accuracy (or loss) on each client's own data, and its examples, where quickly had."""
        weights = run.path / "model.safetensors"
        if not weights.exists() or "clients" not in run.final:
            return None
        try:
            exp, data = self._experiment(run)
            if len(data.train[0]) * run.environment.get("parameters", np.inf) > QUICK:
                return None
            made = model(exp.model, data.shape, data.classes, exp.seed, vocabulary=data.vocabulary)
            made, _ = exp.recipe.adapt(made, exp.training, exp.seed)
            made.load_state_dict(load_file(weights))
            clients = exp.clients(data)
            return _scored(made, clients), clients.sizes
        except Exception:  # it is an extra; the split says what is wrong with the data
            return None

    def _experiment(self, run: RunFolder) -> tuple[Experiment, Dataset]:
        exp = Experiment.of(run.settings)
        name = exp.data.partition("(")[0].strip()
        if not is_own(exp.data) and name in SOURCES and missing(SOURCES[name]):
            raise FedstrataError(f"{name} is not on this machine; `fedstrata data get {name}` downloads it")
        key = exp.source
        if key not in self.loaded:
            self.loaded[key] = exp.dataset()
        return exp, self.loaded[key]


def different_splits(runs: Sequence[RunFolder]) -> list[RunFolder]:
    """The first of the runs that have the same data and partition; another seed is no other split here."""
    first: dict[str, RunFolder] = {}
    for run in runs:
        said = [
            run.settings.get(k) for k in ("made_in_python", "data", "label", "client", "without", "val", "partition")
        ]
        first.setdefault(repr(said), run)
    return list(first.values())


def _owners(clients: Clients, data: Dataset) -> list[str] | None:
    """Of each client, the owner of its examples."""
    return [str(data.owner[rows[0]]) for rows in clients.rows] if data.owner is not None else None


def _scored(made: torch.nn.Module, clients: Clients) -> np.ndarray:
    task = Task.of(made)
    named = {n: p.detach() for n, p in made.named_parameters(remove_duplicate=False) if p.requires_grad}
    scores = score(task, task.layout.flatten(named), buffers_of(made), clients.x, clients.y)
    of_clients = client_scores(scores, clients.rows)
    return of_clients["accuracy" if "accuracy" in of_clients else "loss"]
