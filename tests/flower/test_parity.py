"""On a grid a recipe gives what the simulator gives, to the bit; and does not where clients forget."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedstrata as fs
from fedstrata.clients import Clients
from fedstrata.flower import serve
from fedstrata.flower import store as stores
from fedstrata.flower.server import joined
from fedstrata.layout import Layout
from fedstrata.server import Server
from tests.federations import PLAIN
from tests.flower.federation import (
    equal,
    experiment,
    lines,
    model,
    network,
    network_of,
    over_grid,
    parts,
    simulated,
)
from tests.flower.grid import InProcess

QUICK = ["fedavg", "scaffold", "adaptive_fedprox", "moon", "fedpbs", "feddisco", "fedlayerwise + lws(beta=0.1)"]
"""One of every kind; the others are slow, being many."""

OTHERS = [pytest.param(m, marks=pytest.mark.slow) for m in PLAIN if m not in QUICK]


@pytest.mark.parametrize("method", [*QUICK, *OTHERS])
def test_a_grid_gives_the_simulators_model_bit_for_bit(method: str, tmp_path: Path):
    exp = experiment(method)
    assert equal(over_grid(exp, tmp_path), simulated(exp, tmp_path))


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "moon", "feddc"])
def test_and_another_one_where_clients_forget(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    exp = experiment(method)
    right = simulated(exp, tmp_path)
    monkeypatch.setattr(stores.Store, "keep", lambda *_: None)
    assert not equal(over_grid(exp, tmp_path), right)
    assert lines(tmp_path / "net")[1]["lost"] == ["0", "1", "2"]  # and the record says so


@pytest.mark.parametrize("method", ["fedlaw", "feddf", "fedbe", "fedga_reconstruction"])
def test_recipes_with_server_data_take_it_from_the_servers_test_set(method: str, tmp_path: Path):
    exp = experiment(method, proxy=50, rounds=2)
    assert equal(over_grid(exp, tmp_path), simulated(exp, tmp_path))


@pytest.mark.parametrize("settings", [
    {"buffers": "local", "model": "resnet20(norm='batch')", "data": "digits", "training": {"steps": 1}, "rounds": 2},
    {"training": {"kind": "SGD", "lr": 0.05, "momentum": 0.9, "reset_optimizer": False}},
    {"train_share": 0.5, "val": 0.1, "evaluate_every": 2},
    {"precision": "bf16"},
], ids=["own buffers", "kept momentum", "shares", "fewer digits"])  # fmt: skip
def test_so_it_does_with_other_settings(settings: dict, tmp_path: Path):
    exp = experiment("fedprox", **settings)
    assert equal(over_grid(exp, tmp_path), simulated(exp, tmp_path))


def test_a_sampled_cohort_is_the_simulators(tmp_path: Path):
    exp = experiment("scaffold(select=Sample(k=2))", rounds=5)
    assert equal(over_grid(exp, tmp_path), simulated(exp, tmp_path))
    assert [r["cohort"] for r in lines(tmp_path / "net")] == [r["cohort"] for r in lines(tmp_path / "sim")]


def test_the_record_is_the_simulators_and_more(tmp_path: Path):
    exp = experiment("fedlayerwise + lws(beta=0.1)")
    over_grid(exp, tmp_path)
    simulated(exp, tmp_path)
    for net, sim in zip(lines(tmp_path / "net"), lines(tmp_path / "sim"), strict=True):
        assert net["test"] == sim["test"]
        assert net["train"]["accuracy"] == sim["train"]["accuracy"]
        assert net["clients"] == pytest.approx(sim["clients"], abs=1e-12)
        assert net["by_client"].keys() == {"0", "1", "2"}
    net, sim = (np.load(tmp_path / n / "notes.npz") for n in ("net", "sim"))
    assert set(net) == set(sim)
    assert np.array_equal(net["weights/00002"], sim["weights/00002"])
    assert (tmp_path / "net" / "experiment.toml").read_text() == (tmp_path / "sim" / "experiment.toml").read_text()


def files(folder: Path) -> tuple[dict[int, dict], list[tuple[np.ndarray, np.ndarray]]]:
    """Three nodes with files of their own, and the examples that are to train on."""
    draw, configs, examples = np.random.default_rng(0), {}, []
    for i, name in enumerate(["west", "east", "north"]):
        x, y = draw.normal(i, 1, (40, 6)).astype("float32"), draw.integers(0, 3, 40)
        x_test, y_test = draw.normal(i, 1, (10, 6)).astype("float32"), draw.integers(0, 3, 10)
        np.savez(folder / f"{name}.npz", x=x, y=y, x_test=x_test, y_test=y_test)
        configs[7 * (i + 1)] = {"client": name, "data": str(folder / f"{name}.npz"), "memory": str(folder / "memory")}
        examples.append((x, y))
    return configs, examples


def test_nodes_train_on_files_of_their_own(tmp_path: Path):
    configs, (west, east, north) = files(tmp_path)
    exp = experiment("scaffold", model="mlp")
    grid = InProcess(configs)
    serve(grid, exp, network(tmp_path))
    network_model = network_of(exp)
    clients = Clients.of([east, north, west])  # by their names
    run = fs.simulate(exp.recipe, network_model, clients, rounds=3, training=exp.training, engine="apart")
    assert equal(model(tmp_path / "net"), dict(run.model.state_dict()))
    last = lines(tmp_path / "net")[-1]
    assert last["by_client"].keys() == {"west", "east", "north"}
    assert {"train", "test"} <= last["by_client"]["west"].keys()


@pytest.mark.parametrize(("method", "leaves"), [("fedavg", False), ("feddisco", True), ("fedetf", False)])
def test_label_counts_leave_a_node_only_where_the_recipe_needs_them(method: str, leaves: bool, tmp_path: Path):
    said = []

    def listen(node, message, reply):
        said.extend(reply.content["arrays"])
        return reply

    over_grid(experiment(method, rounds=1), tmp_path, listen)
    assert ("labels" in said or "stats/labels" in said) == leaves


def test_no_message_has_an_example_in_it(tmp_path: Path):
    sizes = []

    def listen(node, message, reply):
        sizes.extend(a.numpy().size for a in reply.content["arrays"].values())
        assert not json.loads(reply.content["facts"]["json"]).keys() & {"x", "y", "data"}
        return reply

    trained = over_grid(experiment("fedavg", rounds=1), tmp_path, listen)
    assert set(sizes) == {1, sum(v.numel() for v in trained.values())}  # numbers, and models


def test_batches_do_not_depend_on_the_order_of_replies(tmp_path: Path):
    exp = experiment("fedlayerwise")
    first = over_grid(exp, tmp_path / "a")
    grid = InProcess(dict(reversed(parts(tmp_path / "b").items())))
    serve(grid, exp, network(tmp_path / "b"))
    assert equal(first, model(tmp_path / "b" / "net"))
    assert all(torch.isfinite(v).all() for v in first.values())


@pytest.mark.parametrize("method", ["feddc", "scaffold", "feddyn", "feddyn_fedlaw"])
def test_newcomers_count_in_what_are_means_over_all_clients(method: str):
    recipe = fs.parse_recipe(method)
    layout = Layout.of_tensors({"a": torch.zeros(2)})
    stats = {"examples": torch.ones(3, dtype=torch.float64)}
    state = {part: {n: v + 1 for n, v in own.items()} for part, own in recipe.init(layout, 3).items()}
    server = joined(recipe, Server(layout, torch.zeros(2), {}, state, stats), {"examples": torch.ones(12)})
    after = server.state["local.0"]
    assert server.population == 12
    assert all(v.tolist() == [1.0 if method == "feddyn_fedlaw" else 0.25] * 2 for v in after.values())
