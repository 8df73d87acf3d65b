"""Real federations of three nodes with files of their own, on loopback, and apps whose nodes do something wrong."""

import os
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

import fedstrata as fs
from fedstrata.clients import Clients
from fedstrata.deploy.app import write_app
from fedstrata.deploy.local import Federation
from fedstrata.experiment import Experiment
from tests.flower.federation import experiment, lines, network_of

NAMES = ["east", "north", "west"]

only_networked = pytest.mark.skipif("FEDSTRATA_NETWORK" not in os.environ, reason="make test-network runs these")

FAULTY = """
import json, os, time
from flwr.app import Array, Message
from flwr.clientapp import ClientApp
from fedstrata.flower.node import answer

app = ClientApp()

@app.query()
@app.train()
@app.evaluate()
def spoiled(message, context):
    reply, facts = answer(message, context), json.loads(message.content["facts"]["json"])
    fault = FAULTS.get((context.node_config["client"], facts.get("round", -1))) if facts["kind"] == "train" else None
    arrays = reply.content["arrays"]
    w = arrays["delta"].numpy().copy() if fault else None
    if fault == "nan":
        w[5] = float("nan")
    if fault == "shape":
        w = w[:-1]
    if fault == "broadcast":
        w = w[:1]
    if fault == "raise":
        raise RuntimeError("the disk of this node is full")
    if fault == "slow":
        time.sleep(SLOW)
    if fault == "exit":
        os._exit(9)
    if fault:
        arrays["delta"] = Array(w)
    return reply
"""


def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
    """What a client has: each a part of the plane, and labels that depend on where."""
    draw = np.random.default_rng(NAMES.index(name))
    x = draw.normal(NAMES.index(name) - 1, 1, (60, 6)).astype("float32")
    return x, (x[:, :3].sum(1) > x[:, 3:].sum(1)).astype(int) + (x[:, 0] > 0)


def files(folder: Path) -> dict[str, dict[str, Any]]:
    """The node configs of three clients, and their files."""
    configs = {}
    for name in NAMES:
        x, y = examples(name)
        np.savez(folder / f"{name}.npz", x=x, y=y, x_test=x[:20], y_test=y[:20])
        configs[name] = {"data": str(folder / f"{name}.npz")}
    return configs


def small(method: str, rounds: int) -> Experiment:
    return experiment(method, rounds=rounds, evaluate_train=False, model="mlp")


def simulated(exp: Experiment) -> dict[str, Any]:
    """What the simulator makes of it."""
    clients = Clients.of([examples(n) for n in NAMES])
    run = fs.simulate(exp.recipe, network_of(exp), clients, rounds=exp.rounds, training=exp.training, engine="apart")
    return dict(run.model.state_dict())


def app_of(folder: Path, exp: Experiment, faults: dict[tuple[str, int], str] | None = None, slow: float = 0.0) -> Path:
    """The app that `fedstrata deploy` writes; or one whose nodes do these things wrong, by name and round."""
    write_app(folder, exp, {"min-online": 3, "poll": 0.2, "wait": 120.0})
    if faults is not None:
        (folder / "fedstrata_app" / "client_app.py").write_text(f"FAULTS, SLOW = {faults!r}, {slow}\n{FAULTY}")
    return folder


def until_round(folder: Path, number: int, seconds: float = 120) -> None:
    """Wait until the record has so many rounds."""
    end = monotonic() + seconds
    while not (folder / "rounds.jsonl").exists() or len(lines(folder)) < number:
        assert monotonic() < end, f"{folder} did not come to round {number} in {seconds} s"
        sleep(0.1)


def completed(fed: Federation, run: str, folder: Path, seconds: float = 240) -> None:
    """Wait for a run, which must end well. Asking Flower takes a second of a core, so its model is looked for first."""
    end = monotonic() + seconds
    while not (folder / "model.safetensors").exists() and monotonic() < end:
        sleep(0.2)
    found = fed.wait(run, 30)
    assert found["status"] == "finished:completed", (found, fed.tail("superlink", 40))
