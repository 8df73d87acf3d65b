"""Over TLS and with node keys, a SuperLink and three SuperNodes give what the simulator gives; faults do no harm."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedstrata.deploy.local import Federation
from tests.flower.federation import equal, lines, model
from tests.network.federation import app_of, completed, files, only_networked, simulated, small, until_round

pytestmark = only_networked

METHODS = ["fedavg", "scaffold", "fedlayerwise + lws(beta=0.1)", "adaptive_fedprox"]


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    with Federation(folder / "here", files(folder)) as fed:
        yield fed
    assert not fed.left()


def test_a_real_network_gives_the_simulators_model_bit_for_bit(fed: Federation, tmp_path: Path):
    """Four recipes at a time: Flower starts a process for every message, which is most of the time."""
    runs = {}
    for i, method in enumerate(METHODS):
        app = app_of(tmp_path / f"app-{i}", small(method, rounds=2))
        runs[method] = fed.submit(app, {"out": str(tmp_path / f"run-{i}")})
    for i, method in enumerate(METHODS):
        completed(fed, runs[method], tmp_path / f"run-{i}")
        assert equal(model(tmp_path / f"run-{i}"), simulated(small(method, rounds=2))), method


def test_faults_do_no_harm_and_are_told_of(fed: Federation, tmp_path: Path):
    faults = {("north", 1): "nan", ("north", 2): "shape", ("north", 3): "broadcast", ("north", 4): "raise"}
    faults |= {("north", 5): "slow", ("west", 5): "exit"}
    exp = small("scaffold", rounds=6)
    run = fed.submit(app_of(tmp_path / "app", exp, faults, slow=120), {"out": str(tmp_path / "run"), "deadline": 40.0})
    completed(fed, run, tmp_path / "run")
    said = lines(tmp_path / "run")
    size = model(tmp_path / "run").values()
    count = sum(v.numel() for v in size)
    assert "quarantined" not in said[0]
    assert said[1]["quarantined"]["north"] == f"delta has 1 of {count} values that are NaN or infinite"
    assert said[2]["quarantined"]["north"].startswith(f"delta is float32 [{count - 1}], and should be")
    assert said[3]["quarantined"]["north"].startswith("delta is float32 [1], and should be")
    assert "the disk of this node is full" in said[4]["failed"]["north"]
    assert {"north", "west"} == {*said[5].get("silent", ()), *said[5].get("failed", ())}
    assert said[5]["seconds"] < 60
    assert all(bool(torch.isfinite(v).all()) for v in size)


def test_a_node_that_is_killed_comes_back_with_what_it_remembers(fed: Federation, tmp_path: Path):
    """SIGKILL in the middle of round 1; the others go on, and it is in again as soon as the SuperLink takes it."""
    exp = small("scaffold", rounds=30)
    app = app_of(tmp_path / "app", exp, {("north", 1): "slow"}, slow=600)
    settings = {"out": str(tmp_path / "run"), "deadline": 30.0, "min-online": 2, "stop-patience": 0}
    run = fed.submit(app, settings)
    until_round(tmp_path / "run", 1)
    fed.kill("north")
    fed.start_node("north")
    back = len(lines(tmp_path / "run"))
    until_round(tmp_path / "run", back + 2)
    fed.flwr("stop", run, "here")
    said = lines(tmp_path / "run")
    counted = [1 not in {*r["dropped"]} and "north" not in {*r.get("silent", ()), *r.get("failed", ())} for r in said]
    assert counted[0]
    assert not counted[1]
    assert counted[-1]
    assert 1 in said[-1]["cohort"]
    assert not any("lost" in r for r in said)  # it kept c_i of round 0
    assert len(list((fed.folder / "memory" / "north").rglob("*.safetensors"))) >= 2
