"""`fedstrata deploy local` as a person types it: the simulator's accuracy, and nothing left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from fedstrata.deploy.processes import marked
from tests.cli.test_cli import fedstrata, last_json
from tests.network.federation import only_networked
from tests.patience import PATIENCE, eventually

pytestmark = only_networked

SMALL = ("--method", "fedlayerwise + lws(beta=0.1)", "--rounds", "1", "--set", "training.epochs=1")
MORE = ("--rounds", "500", "--set", "evaluate_train=false")


def mark_of(work: Path) -> str:
    return next(work.glob("federation-*")).name


def test_it_ends_with_the_simulators_accuracy_and_leaves_nothing_running(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert fedstrata("deploy", "local", "--nodes", "2", *SMALL, "--work", "work", "--out", "net", "--json") == 0
    told = last_json(capsys)
    assert fedstrata("run", "--clients", "2", *SMALL, "--out", "sim", "--json") == 0
    there = last_json(capsys)
    assert told["test"]["accuracy"] == there["test"]["accuracy"]
    assert told["clients"] == there["clients"]
    assert (told["recipe"], told["run"]) == (there["recipe"], "net")
    assert {p.name for p in Path("net").iterdir()} >= {p.name for p in Path("sim").iterdir()}
    assert marked(mark_of(Path("work"))) == []


def test_ctrl_c_stops_all_of_it_and_so_does_kill(tmp_path: Path):
    """Two at a time, since starting takes most of it."""
    numbers = {"interrupted": signal.SIGINT, "killed": signal.SIGKILL}
    begun = {}
    for name in numbers:
        call = [sys.executable, "-m", "fedstrata", "deploy", "local", "--nodes", "1", *MORE, "--work", name]
        begun[name] = subprocess.Popen(call, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    assert eventually(lambda: all((w / "app").exists() for w in (tmp_path / n for n in numbers)))
    for name, number in numbers.items():
        mark = mark_of(tmp_path / name)
        assert len(marked(mark)) >= 4
        os.killpg(begun[name].pid, number)
        said = begun[name].communicate(timeout=PATIENCE)[1]
        assert begun[name].returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), said
        assert eventually(lambda m=mark: marked(m) == [])
