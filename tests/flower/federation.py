"""An experiment of three clients, simulated and over a grid, and what the tests compare."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from fedstrata.data import Dataset
from fedstrata.experiment import Experiment
from fedstrata.flower import Network, serve
from tests.flower.grid import InProcess, Spoil

NODES = 3


def experiment(method: str = "fedavg", **settings: Any) -> Experiment:
    small = {"data": "digits", "rounds": 3, "model": "mlp", "engine": "apart", "training": {"steps": 3}}
    return Experiment.of(small | {"partition": {"clients": NODES, "alpha": 0.5}, "method": method} | settings)


def parts(folder: Path, nodes: int = NODES) -> dict[int, dict[str, Any]]:
    """Nodes that share out the experiment's own data."""
    return {100 + i: {"partition-id": i, "memory": str(folder / "memory" / str(i))} for i in range(nodes)}


def network(folder: Path, **settings: Any) -> Network:
    return Network(**{"out": str(folder / "net"), "min_online": NODES, "poll": 0.01, "wait": 1.0} | settings)


def over_grid(exp: Experiment, folder: Path, spoil: Spoil | None = None, **settings: Any) -> dict[str, torch.Tensor]:
    serve(InProcess(parts(folder), spoil=spoil), exp, network(folder, **settings))
    return model(folder / "net")


def simulated(exp: Experiment, folder: Path) -> dict[str, torch.Tensor]:
    exp.run(folder / "sim")
    return model(folder / "sim")


def model(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def network_of(exp: Experiment) -> nn.Module:
    """Its model before the first round, for six features and three classes."""
    data = torch.zeros(2, 6), torch.zeros(2, dtype=torch.long)
    return exp.network(Dataset(data, data, classes=3))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
