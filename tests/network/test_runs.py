"""Over TLS and with node keys, a SuperLink and three SuperNodes give what the simulator gives; faults do no harm."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedstrata.deploy.local import Federation
from tests.flower.federation import equal, lines, model
from tests.network.federation import (
    app_of,
    completed,
    files,
    hangs,
    hung,
    only_networked,
    simulated,
    small,
    until_round,
)  # fmt: skip
from tests.patience import PATIENCE, eventually

pytestmark = only_networked

METHODS = {"fedavg": 1, "scaffold": 2, "fedlayerwise + lws(beta=0.1)": 2, "adaptive_fedprox": 2}
"""With as many rounds: two, where the second depends on what clients or the server remember."""


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    with Federation(folder / "here", files(folder)) as fed:
        yield fed
    assert not fed.left()


def test_a_real_network_gives_the_simulators_model_bit_for_bit(fed: Federation, tmp_path: Path):
    """Four recipes at a time: Flower starts a process for every message, which is most of the time."""
    runs = {}
    for i, (method, rounds) in enumerate(METHODS.items()):
        app = app_of(tmp_path / f"app-{i}", small(method, rounds))
        runs[method] = fed.submit(app, {"out": str(tmp_path / f"run-{i}")})
    for i, (method, rounds) in enumerate(METHODS.items()):
        completed(fed, runs[method], tmp_path / f"run-{i}")
        assert equal(model(tmp_path / f"run-{i}"), simulated(small(method, rounds))), method


def test_faults_do_no_harm_and_are_told_of(fed: Federation, tmp_path: Path):
    faults = {("north", 1): "nan", ("west", 1): "shape", ("north", 2): "broadcast", ("west", 2): "raise"}
    run = fed.submit(app_of(tmp_path / "app", small("scaffold", rounds=3), faults), {"out": str(tmp_path / "run")})
    completed(fed, run, tmp_path / "run")
    said, found = lines(tmp_path / "run"), model(tmp_path / "run").values()
    count = sum(v.numel() for v in found)
    assert "quarantined" not in said[0]
    assert said[1]["quarantined"]["north"] == f"delta has 1 of {count} values that are NaN or infinite"
    assert said[1]["quarantined"]["west"].startswith(f"delta is float32 [{count - 1}], and should be")
    assert said[2]["quarantined"]["north"].startswith("delta is float32 [1], and should be")
    assert "the disk of this node is full" in said[2]["failed"]["west"]
    assert all(bool(torch.isfinite(v).all()) for v in found)
    _who_hangs_or_dies_is_left_out(fed, tmp_path / "late", deadline=max(90.0, 6 * max(r["seconds"] for r in said)))


def _who_hangs_or_dies_is_left_out(fed: Federation, folder: Path, deadline: float) -> None:
    """After the deadline, which is many times what a round takes here now: the honest one is in time."""
    folder.mkdir()
    app = app_of(folder / "app", small("scaffold", rounds=1), {("north", 0): "hang", ("west", 0): "exit"})
    try:
        completed(fed, fed.submit(app, {"out": str(folder / "run"), "deadline": deadline}), folder / "run")
        [said] = lines(folder / "run")
    finally:
        hung(app).touch()  # only now
    assert {"north", "west"} == {*said.get("silent", ()), *said.get("failed", ())}
    assert "north" in said["silent"]
    assert said["seconds"] >= deadline
    assert all(bool(torch.isfinite(v).all()) for v in model(folder / "run").values())


def test_a_node_that_is_killed_comes_back_with_what_it_remembers(fed: Federation, tmp_path: Path):
    """SIGKILL in the middle of round 1; the others go on, and it is in again as soon as the SuperLink takes it."""
    app = app_of(tmp_path / "app", small("scaffold", rounds=1000), {("north", 1): "hang"})
    settings = {"out": str(tmp_path / "run"), "deadline": 300.0, "min-online": 2, "stop-patience": 0}
    run = fed.submit(app, settings)
    assert eventually(lambda: hangs(app))
    fed.kill("north")
    fed.start_node("north", PATIENCE)
    until_round(tmp_path / "run", 2)
    back = len(lines(tmp_path / "run"))
    until_round(tmp_path / "run", back + 2)
    fed.flwr("stop", run, "here")
    said = lines(tmp_path / "run")
    away = [{*r.get("silent", ()), *r.get("failed", ())} for r in said]
    assert away[0] == away[-1] == set()
    assert away[1] == {"north"}
    assert 1 in said[-1]["cohort"]
    assert not any("lost" in r for r in said)  # it kept c_i of round 0
    assert len(list((fed.folder / "memory" / "north").rglob("*.safetensors"))) >= 2
