"""Real federations of three nodes with files of their own, on loopback, and apps whose nodes do something wrong."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstrata as fs
from fedstrata.clients import Clients
from fedstrata.deploy.app import write_app
from fedstrata.deploy.local import Federation
from fedstrata.experiment import Experiment
from tests.flower.federation import experiment, network_of
from tests.patience import PATIENCE, eventually

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
    if fault == "hang":
        open(f"{HUNG}.begun", "w").close()
        for _ in range(9000):  # half an hour, unless it is let go
            if os.path.exists(HUNG):
                break
            time.sleep(0.2)
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


def app_of(folder: Path, exp: Experiment, faults: dict[tuple[str, int], str] | None = None) -> Path:
    """The app that `fedstrata deploy` writes; or one whose nodes do these things wrong, by name and round.

    Nobody is late for want of a processor: a round waits for as long as it takes, where a test says nothing else.
    """
    config = {"clients": ",".join(NAMES), "min-online": len(NAMES), "poll": 0.2, "wait": PATIENCE, "deadline": 0.0}
    write_app(folder, exp, config)  # with seats in this order, whoever is the first to say who it is
    if faults is not None:
        said = f"FAULTS, HUNG = {faults!r}, {str(hung(folder))!r}\n{FAULTY}"
        (folder / "fedstrata_app" / "client_app.py").write_text(said)
    return folder


def hung(app: Path) -> Path:
    """The file that lets go of an app's nodes that hang; NAME.begun is there as soon as one does.

    A SuperNode does one thing at a time: as long as one hangs, it answers nobody, also not the runs of other tests.
    """
    return app.with_name(f"{app.name}-go")


def hangs(app: Path) -> bool:
    """Whether one does."""
    return Path(f"{hung(app)}.begun").exists()


def until_round(folder: Path, number: int) -> None:
    """Wait until so many rounds are on disk, and what it takes to go on from there."""
    kept = folder / "checkpoint"
    there = eventually(lambda: any(int(p.stem) >= number for p in kept.glob("*.json")))
    assert there, f"{folder} did not come to round {number} in {PATIENCE} s"


def completed(fed: Federation, run: str, folder: Path) -> None:
    """Wait for a run, which must end well. Asking Flower takes a second of a core, so its model is looked for first."""
    eventually((folder / "model.safetensors").exists)
    found = fed.wait(run, PATIENCE)
    assert found["status"] == "finished:completed", (found, fed.tail("superlink", 40))
