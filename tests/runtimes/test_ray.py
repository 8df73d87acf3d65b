"""The Ray engine on a real cluster of two workers: the simulator's result, also when workers are killed.

`make test-ray` runs these; a plain `make test`, which is to be quick, leaves them to it. What the engine sends, and
does with what comes back, is in test_site.py, without Ray.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.measure import tree
from fedstrata.errors import ClientError
from fedstrata.runtimes import choose
from fedstrata.runtimes import cluster as clusters
from fedstrata.runtimes import ray as rays
from fedstrata.runtimes.cluster import Cluster
from fedstrata.task import accuracy
from tests.blocks import blocks, commands, same
from tests.federations import flat, unequal_clients
from tests.patience import PATIENCE, eventually
from tests.runtimes.test_crew import alive
from tests.runtimes.test_site import EACH, FAULTS, assert_same, run
from tests.runtimes.test_unequal_clients import bn_cnn, image_clients

pytestmark = pytest.mark.skipif("FEDSTRATA_RAY" not in os.environ, reason="make test-ray runs these")


@pytest.fixture(scope="module")
def real() -> Iterator[Cluster]:
    """One cluster for all: it takes some seconds to start."""
    cluster = Cluster(None, 2)
    yield cluster
    cluster.close()


@pytest.fixture
def two(real: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Its two workers, for every run of a test."""
    monkeypatch.setattr(choose, "Cluster", lambda *_: real)
    monkeypatch.setattr(real, "close", lambda: None)
    return real


RECIPES = ["fedavg", "fedprox", "scaffold", "moon", "fedlayerwise + lws(beta=0.1)", "fedadp", "fedbs", "fedpbs"]


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("method", RECIPES)
def test_two_workers_give_the_simulators_result_bit_for_bit(method: str):
    assert_same(run(method, "ray"), run(method, "stacked"))


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_so_do_partial_sums(method: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rays, "SMALL", 0)
    assert_same(run(method, "ray"), run(method, "stacked", memory=3.5 * EACH))


@pytest.mark.parametrize("workers", [1, 2])
def test_so_do_convolutions_on_any_number_of_workers(workers: int, two: Cluster, monkeypatch: pytest.MonkeyPatch):
    two.dismiss()
    monkeypatch.setattr(two, "workers", workers)
    draw = torch.Generator().manual_seed(0)
    test = torch.randn(3000, 1, 4, 4, generator=draw), torch.randint(0, 3, (3000,), generator=draw)
    given: dict[str, Any] = {"model": bn_cnn(), "clients": image_clients(), "test": test, "buffers": "local"}
    assert_same(run("scaffold", "ray", **given), run("scaffold", "apart", **given))


def once(first: int, token: str, outputs: Tensor, y: Tensor) -> Tensor:
    """A loss that kills its process when there is a token, which it takes away; in the first process it does not."""
    with suppress(FileNotFoundError):
        if os.getpid() != first:
            Path(token).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    return nn.functional.cross_entropy(outputs, y, reduction="none")


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(("method", "small"), [("scaffold", rays.SMALL), ("scaffold", 0), ("fedbs", rays.SMALL)])
def test_a_worker_that_is_killed_in_the_middle_of_a_round_changes_nothing(
    method: str, small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In training, with what clients remember, also with partial sums; and, of FedBS, while clients measure."""
    monkeypatch.setattr(rays, "SMALL", small)
    token = tmp_path / "token"
    loss, metrics = partial(once, os.getpid(), str(token)), {"accuracy": accuracy}
    killed = list[int]()

    def arm(line: dict[str, Any]) -> None:
        killed.append(not token.exists())
        token.touch() if line["round"] in (0, 1) else None

    given: dict[str, Any] = {"loss": loss, "metrics": metrics, "chunk": 2, "rounds": 4}
    whole = run(method, "ray", **given)
    with pytest.warns(RuntimeWarning, match=r"a worker of the Ray cluster was lost \(ActorDiedError: .*; another does"):
        broken = run(method, "ray", on_round=arm, **given)
    assert killed == [True] * 4
    assert_same(broken, whole)


@pytest.mark.usefixtures("two")
def test_what_kills_every_worker_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clusters, "TRIES", 2)
    first = os.getpid()

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != first and len(y) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(outputs, y, reduction="none")

    sentence = r"2 workers of the Ray cluster were lost over the same job .*, perhaps for want of memory: use a smaller"
    with pytest.raises(ClientError, match=sentence), pytest.warns(RuntimeWarning, match="was lost"):
        run("fedavg", "ray", loss=loss, chunk=1)


@pytest.mark.usefixtures("two")
def test_an_error_names_the_round_and_the_client():
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.slope = nn.Linear(6, 3, dtype=torch.float64), nn.PReLU(dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            if self.training and bool((x > 99).any()):
                raise ZeroDivisionError("by nought")
            return self.slope(self.layer(x))

    clients = unequal_clients()
    clients.x[clients.rows[4][0]] = 100.0
    with pytest.raises(ClientError, match="round 0, client 4, training: ZeroDivisionError: by nought") as caught:
        run("fedavg", "ray", model=Fragile(), clients=clients)
    assert "In a worker process" in "".join(caught.value.__notes__)


@pytest.mark.usefixtures("two")
def test_faults_checkpoints_and_another_engine(tmp_path: Path):
    class Broken(Exception):
        pass

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise Broken

    given: dict[str, Any] = {"rounds": 6, "faults": FAULTS}
    where: dict[str, Any] = {"out": tmp_path / "run", "checkpoint": 2}
    with pytest.raises(Broken):
        run("scaffold", "ray", on_round=stop, **given, **where)
    assert_same(run("scaffold", "ray", resume=True, **given, **where), run("scaffold", "stacked", **given))


SETTINGS = ["--rounds", "3", "--clients", "12", "--set", "workers=2", "--set", "chunk=4", "--json"]


def command(folder: Path, *more: str) -> dict[str, Any]:
    """What `fedstrata run` says of a run."""
    args = [sys.executable, "-W", "error", "-m", "fedstrata", "run", "--method", "scaffold", *SETTINGS, *more]
    done = subprocess.run(args, cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def environment() -> dict[str, str]:
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # where a cluster of this machine alone is
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"} | loopback


def test_a_cluster_at_an_address_is_used_and_left_running(two: Cluster, tmp_path: Path):
    two.dismiss()  # their cores are wanted
    address = two.ray.get_runtime_context().gcs_address
    over, here = command(tmp_path, "--ray-address", address), command(tmp_path, "--engine", "stacked")
    assert {k: over[k] for k in ("train", "test", "clients")} == {k: here[k] for k in ("train", "test", "clients")}
    assert 'engine = "ray"' in (tmp_path / over["run"] / "experiment.toml").read_text()
    assert torch.equal(flat(run("fedavg", "ray").model), flat(run("fedavg", "stacked").model))


def test_where_nobody_answers_there_is_a_sentence(tmp_path: Path):
    args = [sys.executable, "-m", "fedstrata", "run", "--ray-address", "127.0.0.1:9"]
    done = subprocess.run(args, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert "no Ray cluster can be used at 127.0.0.1:9" in done.stderr
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


ALONE = """
import os, sys, signal, tempfile, torch, fedstrata as fs
from pathlib import Path
torch.set_num_threads(1)
clients = [(torch.randn(4, 6), torch.arange(4) % 3) for _ in range(6)]
def on_round(line):
    print(*Path(tempfile.gettempdir()).glob("fedstrata-*"), flush=True)
    sys.stdin.readline()
before = signal.getsignal(signal.SIGTERM)
fs.simulate("scaffold", torch.nn.Linear(6, 3), clients, rounds=2, engine="ray", workers=2, on_round=on_round)
assert signal.getsignal(signal.SIGTERM) == before
"""
AGENTS = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
"""Of Ray's own: when their cluster was killed, they try to tell it so for a minute before they go."""


@pytest.fixture
def alone() -> Iterator[tuple[subprocess.Popen[str], list[int], list[Path]]]:
    """A run with a cluster of its own, which waits after every round; all its processes, and its folder."""
    with TemporaryDirectory(prefix="ray") as folder:
        args = [sys.executable, "-W", "error", "-c", ALONE]
        where = environment() | {"TMPDIR": folder}
        child = subprocess.Popen(args, env=where, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            made = [Path(p) for p in child.stdout.readline().split()]
            yield child, tree(child.pid), made
        finally:
            child.kill()
            child.communicate()


def listening(pids: list[int]) -> set[str]:
    """The addresses at which these processes can be reached, as the kernel writes them."""
    sockets = {str(f.readlink()) for p in pids for f in Path(f"/proc/{p}/fd").iterdir()}
    lines = [line.split() for n in ("tcp", "tcp6") for line in Path(f"/proc/net/{n}").read_text().splitlines()[1:]]
    return {line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


def test_a_cluster_of_our_own_listens_to_this_machine_alone_and_leaves_nothing(alone: Any):
    child, pids, made = alone
    assert len(pids) > 6  # Ray's own, and two workers
    assert listening(pids) <= {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1
    assert len(made) == 1
    child.communicate("\n\n", timeout=PATIENCE)
    assert child.returncode == 0
    assert eventually(lambda: not any(map(alive, pids)))
    assert not made[0].exists()


def test_it_ends_with_us_when_we_are_killed(alone: Any):
    child, pids, _ = alone
    names = {p: Path(f"/proc/{p}/cmdline").read_text().split("\0")[0].strip() for p in pids}
    assert "ray::Hand" in names.values()
    child.kill()
    child.wait(PATIENCE)
    assert eventually(lambda: {names[p] for p in pids if alive(p)} <= AGENTS)


def test_the_command_of_the_page_runs_and_shows_what_the_page_shows(tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "ray.md").read_text(encoding="utf-8")
    [(command, shown)] = [
        c for b in blocks(page) if (b.reason or "").endswith("make test-ray does") for c in commands(b.text)
    ]
    words = [sys.executable, "-m", "fedstrata", *shlex.split(command)[1:]]
    done = subprocess.run(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout
    assert same(shown, done.stdout), done.stdout
    assert "engine" in (tmp_path / "many" / "experiment.toml").read_text()
