"""On a terminal of 80 columns names give way, and no number is cut."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedstrata.commands.deploy import checks_table
from fedstrata.console import RunsWatcher, Watcher
from fedstrata.deploy.check import Check
from fedstrata.experiment import Experiment
from fedstrata.lab.many import Job
from fedstrata.report import runs_table
from tests.cli.test_cli import QUICK, fedstrata

LONG = "fedlayerwise + lws(beta=0.1) + Sample(k=5)"


def narrow() -> Console:
    return Console(width=80, file=StringIO())


def said(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("name", ["fedavg", LONG])
def test_progress_says_all_of_its_numbers(name: str):
    console = narrow()
    with Watcher(console, {name: 100}) as watcher:
        watcher.of(name)({"round": 99, "test": {"accuracy": 1.0}, "seconds": 0.123})
    line = " ".join(said(console).split())
    assert line.endswith("100/100 accuracy 100.0 % 0.12 s a round left 0:00:00")
    assert line.startswith(name[:12])


def test_a_log_is_told_now_and_then_how_far_it_is(monkeypatch):
    """Bars are drawn in a terminal alone: a job in the background was silent to its end."""
    now = iter((0.0, 10.0, 40.0, 40.0, 41.0))
    monkeypatch.setattr("fedstrata.console.monotonic", lambda: next(now))
    console = narrow()
    with Watcher(console, {"fedavg": 3}) as watcher:
        for i in range(3):
            watcher.of("fedavg")({"round": i, "test": {"accuracy": 0.5}, "seconds": 20.0})
        assert said(console) == "fedavg: 2 of 3 rounds, accuracy 50.0 %, 20.00 s a round\n"


def test_a_log_is_told_of_many_runs_too(monkeypatch):
    monkeypatch.setattr("fedstrata.console.NEWS", 0.0)
    console, job = narrow(), Job("scaffold-0", Experiment.of({"rounds": 4}), Path("a"))
    with RunsWatcher(console, 2) as watcher:
        watcher.told(job, {"round": 0, "test": {"loss": 0.25}})
        watcher.told(job, None)
        watcher.told(replace(job, name="scaffold-1"), {"round": 1, "test": {"accuracy": 0.5}})
        first, second = said(console).splitlines()
    assert first == "runs that have ended: 0; scaffold-0: 1 of 4 rounds, loss 0.2500"
    assert second == "runs that have ended: 1; scaffold-1: 2 of 4 rounds, accuracy 50.0 %"


@pytest.mark.parametrize("name", ["fedprox-Sample", "fedlayerwise-lws-Sample"])
def test_a_table_of_a_run_has_all_of_its_columns(name: str):
    sets = {s: {"accuracy": 0.987, "loss": 1.2345} for s in ("test", "val", "train")}
    console = narrow()
    console.print(runs_table({name: sets | {"clients": {"mean": 0.9, "worst10": 0.8, "std": 0.5}}}))
    assert "…" not in said(console)
    assert "test loss" in said(console)
    first = said(console).splitlines()[3].split()[0]
    assert name.startswith(first)
    assert len(first) >= 14


def test_what_a_run_folder_has_is_called_by_the_folder(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert fedstrata("run", "--rounds", "1", "--out", "mine", *QUICK) == 0
    capsys.readouterr()
    assert fedstrata("run", "mine/experiment.toml", "--out", "again") == 0
    assert "mine on digits" in capsys.readouterr().out


def test_progress_of_an_unknown_number_of_runs_ends_with_a_number():
    console = narrow()
    with RunsWatcher(console, None) as watcher:
        for _ in range(3):
            watcher.told(Job("a", Experiment.of({}), Path("a")), None)
    assert "3/3" in said(console)


def test_a_check_that_fails_does_not_fold_those_that_do_not():
    console, fine = narrow(), "EC on P-384, private, and both halves fit"
    bad = Check("TLS", False, "it shows an older certificate of ours", "copy server/tls there, and reload the proxy")
    console.print(checks_table([Check("key of hospital-a", True, fine), bad]))
    assert fine in said(console)
    assert bad.remedy in said(console)
