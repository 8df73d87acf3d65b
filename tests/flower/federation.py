"""An experiment of three clients, simulated and over a grid, and what the tests compare."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from safetensors.torch import load_file
from torch import nn

from fedstrata.data import Dataset
from fedstrata.experiment import Experiment
from fedstrata.flower import Network, serve
from fedstrata.flower.records import unpacked
from tests.flower.grid import InProcess, Spoil

NODES = 3

BAD = 101
"""The node that does something wrong."""


def changed(change: Callable[[dict[str, Array], dict[str, Any]], Any], kind: str = "train", number: int = 1) -> Spoil:
    """The bad node's reply in one round, with its arrays and facts changed, or a content that is given instead."""

    def spoil(node: int, message: Message, reply: Message) -> Message:
        _, facts = unpacked(reply.content)
        if node != BAD or facts["kind"] != kind or facts.get("round", number) != number:
            return reply
        arrays: dict[str, Any] = dict(reply.content["arrays"])
        other = change(arrays, facts)
        return Message(other if isinstance(other, RecordDict) else content(arrays, facts), reply_to=message)

    return spoil


def content(arrays: dict[str, Array], facts: Any) -> RecordDict:
    said = facts if isinstance(facts, str) else json.dumps(facts)
    return RecordDict({"arrays": ArrayRecord(arrays), "facts": ConfigRecord({"json": said})})


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


def own_files(folder: Path, **more: Any) -> dict[int, dict[str, Any]]:
    """Three nodes, each with a table of its own."""
    draw, configs = np.random.default_rng(0), {}
    for i, name in enumerate(["west", "east", "north"]):
        path = folder / f"{name}.csv"
        rows = np.c_[draw.normal(i, 1, (30, 4)), draw.integers(0, 2, 30)]
        np.savetxt(path, rows, delimiter=",", header="a,b,c,d,ill", comments="", fmt=["%.4f"] * 4 + ["%d"])
        configs[i + 1] = {"client": name, "data": str(path), "label": "ill", "memory": str(folder / "memory")} | more
    return configs
