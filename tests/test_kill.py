"""kill -9 at any moment: a run that was killed again and again and resumed each time ends as one that never was."""

import random
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from fedstrata.cli import main
from fedstrata.experiment import Experiment
from fedstrata.record import finished, read_rounds
from tests.patience import PATIENCE, eventually

pytestmark = pytest.mark.slow

METHODS = ["fedavg", "scaffold", "adaptive_fedprox", "fedlayerwise", "moon", "fedadam"]
KILLS = 10


def settings(method: str) -> dict:
    split = {"kind": "Dirichlet", "clients": 6, "alpha": 0.3}
    training = {"kind": "SGD", "lr": 0.1, "batch": 64, "epochs": 1}
    plan = {"rounds": 60, "checkpoint": 3, "evaluate_every": 5, "engine": "stacked"}
    return {"method": method, "model": "mlp", "partition": split, "training": training} | plan


def work(method: str, folder: str) -> None:
    """In a process of its own: begin, or go on."""
    torch.set_num_threads(1)
    begun = (Path(folder) / "experiment.toml").exists()
    Experiment.of(settings(method)).run(folder, resume=begun)


@pytest.fixture(scope="module")
def nursery():
    """Processes that begin with everything imported, forked off one that has done nothing else."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["fedstrata.experiment", "sklearn.datasets"])
    return context


@pytest.mark.parametrize("method", METHODS)
def test_killed_ten_times_it_ends_with_the_same_bytes(method, nursery, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    began = time.perf_counter()
    work(method, str(whole))
    lasts, draw, kills = time.perf_counter() - began, random.Random(method), 0
    while kills < KILLS or not finished(broken):
        process = nursery.Process(target=work, args=(method, str(broken)))
        process.start()
        process.join(draw.uniform(0, 2.5 * lasts / KILLS) + 0.05 if kills < KILLS else PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
            kills += 1
        else:
            assert process.exitcode == 0
        if kills < KILLS and finished(broken):  # too soon: another one
            broken = tmp_path / f"broken-{kills}"
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    without = [[{k: v for k, v in r.items() if k != "seconds"} for r in read_rounds(f)] for f in (whole, broken)]
    assert without[0] == without[1]


def test_the_command_goes_on_with_a_run_that_was_killed(tmp_path):
    command = [sys.executable, "-m", "fedstrata", "run", "--rounds", "20", "--out", str(tmp_path / "run")]
    run = subprocess.Popen([*command, "--set", "checkpoint=2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: bool(list(tmp_path.glob("run/checkpoint/*.json"))))
    finally:
        run.kill()
        run.wait()
    assert not finished(tmp_path / "run")
    again = [sys.executable, "-m", "fedstrata", "run", "--resume", str(tmp_path / "run")]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [r["round"] for r in read_rounds(tmp_path / "run")] == list(range(20))


@pytest.mark.parametrize("beside", [["--method", "fedavg"], ["--out", "x"], ["x.toml"]])
def test_resume_takes_no_other_experiment(beside, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--resume", str(tmp_path), *beside])
    assert stopped.value.code == 2
    assert "--resume goes on with what its folder says" in capsys.readouterr().err


def test_a_comparison_is_gone_on_with_by_its_own_command(tmp_path, capsys):
    (tmp_path / "fedavg/seed-0").mkdir(parents=True)
    (tmp_path / "fedavg/seed-0/experiment.toml").touch()
    with pytest.raises(SystemExit):
        main(["run", "--resume", str(tmp_path)])
    assert f"they go on by the command that began them, with --out {tmp_path}" in capsys.readouterr().err


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--resume", str(tmp_path)])
    assert stopped.value.code == 2
    assert "it has no experiment.toml" in capsys.readouterr().err
