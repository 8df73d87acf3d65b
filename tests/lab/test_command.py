"""The command at the end of an advice: it says what differs from the defaults, and gives the same experiment again."""

import shlex
from pathlib import Path

import pytest

from fedstrata.experiment import Experiment
from fedstrata.lab.command import run_command
from fedstrata.toml import dumps
from tests.cli.test_cli import fedstrata, settings_of


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{i % 3},{i % 2},{'ab'[i % 2]}" for i in range(40)]
    Path("own.csv").write_text("\n".join(["x,y,sick,ward", *rows]))
    said = {"data": str(tmp_path / "own.csv"), "label": "sick", "client": "ward", "model": "logreg", "rounds": 1}
    plan = Experiment.of(said)
    return plan.settled(plan.dataset())


def test_a_split_that_the_file_makes_is_not_repeated(own: Experiment):
    command = run_command(own, "fedavg")
    assert "--set" not in command
    assert fedstrata(*shlex.split(command)[1:], "--out", "a") == 0
    assert settings_of("a") == own.settings()


def test_another_split_of_the_same_file_is_said(own: Experiment):
    other = Experiment.of(own.settings() | {"partition": {"kind": "IID", "clients": 3}})
    command = run_command(other, "fedavg")
    assert "partition=" in command
    assert fedstrata(*shlex.split(command)[1:], "--out", "b") == 0
    assert dumps(settings_of("b")["partition"]) == dumps(other.settings()["partition"])
