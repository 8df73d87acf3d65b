"""Runs of a comparison that go on together on a GPU: which, how many, and that nothing of them is lost."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedstrata as fs
from fedstrata.lab import many
from fedstrata.lab import together as lab
from fedstrata.lab.jobs import Job, finished
from fedstrata.lab.together import companies, most, run_together
from fedstrata.record import read_rounds
from fedstrata.stopping import Stopped

SMALL = {"rounds": 3, "partition": {"clients": 5}, "training": {"epochs": 1}, "engine": "stacked"}


def job(folder: Path, method: str = "fedavg", seed: int = 0, **settings: Any) -> Job:
    exp = fs.Experiment.of(SMALL | {"method": method, "seed": seed} | settings)
    return Job(f"{method}, seed {seed}", exp.settled(exp.dataset()), folder / f"{method}-{seed}")


def on_gpu(jobs: list[Job]) -> list[Job]:
    return [replace(j, experiment=replace(j.experiment, device="cuda")) for j in jobs]


def silent(_job: Job, _line: dict[str, Any] | None) -> None: ...


def test_they_write_what_each_writes_alone(tmp_path):
    chosen = [("fedavg", 0), ("fedavg", 1), ("fedlayerwise", 0), ("scaffold", 0)]
    told: list[tuple[str, int | None]] = []
    run_together(
        [job(tmp_path / "together", *c) for c in chosen], lambda j, r: told.append((j.name, r["round"] if r else None))
    )
    for c in chosen:
        alone, beside = job(tmp_path / "alone", *c), job(tmp_path / "together", *c)
        many.run_all([alone], 1)
        assert finished(beside)
        models = [load_file(j.folder / "model.safetensors") for j in (alone, beside)]
        torch.testing.assert_close(*models, rtol=0, atol=1e-5)
        for a, b in zip(*(read_rounds(j.folder) for j in (alone, beside)), strict=True):
            assert a["cohort"] == b["cohort"]
            assert a["test"]["loss"] == pytest.approx(b["test"]["loss"], abs=1e-4)
        assert [n for name, n in told if name == beside.name] == [0, 1, 2, None]


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is not here."""
    monkeypatch.setattr(lab, "usable_device", lambda _: torch.device("cpu"))


@pytest.mark.usefixtures("room")
def test_seeds_go_on_together_and_so_do_methods_that_differ_on_the_server_alone(tmp_path):
    wanted = [("fedavg", 0), ("fedprox", 0), ("fedavg", 1), ("fedlws", 0), ("fedprox", 1), ("fedprox(mu=0.5)", 0)]
    jobs = on_gpu([job(tmp_path, *w) for w in wanted])
    names = [[j.name for j in some] for some in companies(jobs)]
    assert names == [
        ["fedavg, seed 0", "fedavg, seed 1", "fedlws, seed 0"],
        ["fedprox, seed 0", "fedprox, seed 1"],
        ["fedprox(mu=0.5), seed 0"],
    ]


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize(
    "other",
    [
        {"training": {"lr": 0.5}}, {"model": "logreg"}, {"precision": "tf32"}, {"engine": "apart"}, {"chunk": 2},
        {"val": 0.2},
    ],
    ids=str,
)  # fmt: skip
def test_those_that_do_something_else_do_it_by_themselves(other, tmp_path):
    jobs = on_gpu([job(tmp_path, seed=0), job(tmp_path, seed=1, **other)])
    assert [len(some) for some in companies(jobs)] == [1, 1]


def test_on_a_cpu_none_go_on_together(tmp_path):
    assert [len(some) for some in companies([job(tmp_path, seed=s) for s in range(3)])] == [1, 1, 1]


@pytest.mark.usefixtures("room")
def test_as_many_as_fill_the_device_and_as_have_room(tmp_path, monkeypatch):
    exp = job(tmp_path).experiment
    assert most(exp) == lab.LARGEST
    monkeypatch.setattr(lab, "FULL", 1)
    assert most(exp) == 1
    model, numbers = 2 * 65 * 64 + 65 * 10, 6 * 64 + 10  # of an MLP; of an example, and what layers make of it
    seen = 4 * 5 * (model + 20 * numbers)  # bytes of five clients with batches of 20
    for full, fit in ((3 * seen, 3), (3 * seen + 1, 4)):
        monkeypatch.setattr(lab, "FULL", full)
        assert most(exp) == fit
    monkeypatch.setattr(lab, "FULL", 1 << 40)
    monkeypatch.setattr(lab, "clients_at_once", lambda *_: 17)
    assert most(exp) == 3
    monkeypatch.setattr(lab, "clients_at_once", lambda *_: 4)
    assert most(exp) == 1
    monkeypatch.setattr(lab, "clients_at_once", lambda *_: 12)
    jobs = on_gpu([job(tmp_path, seed=s) for s in range(5)])
    assert [len(some) for some in companies(jobs)] == [2, 2, 1]


@pytest.mark.usefixtures("room")
def test_a_run_with_more_clients_takes_more_room(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "clients_at_once", lambda *_: 24)
    few, many_ = ([job(tmp_path, seed=s, partition={"clients": n}) for s in range(3)] for n in (4, 12))
    assert [len(some) for some in companies(on_gpu(few))] == [3]
    assert [len(some) for some in companies(on_gpu(many_))] == [2, 1]
    assert [len(some) for some in companies(on_gpu([*few, *many_]))] == [4, 2]
    assert [len(some) for some in companies(on_gpu([*many_, *few]))] == [2, 4]


@pytest.mark.usefixtures("room")
def test_what_clients_remember_has_room_too(tmp_path):
    alike = job(tmp_path, "scaffold").experiment  # five clients remember a model each
    size = sum(p.numel() for p in alike.network(alike.dataset()).parameters()) * 4 * 5 / 2**30
    assert most(replace(alike, memory=3.5 * size)) == 3
    assert most(replace(alike, memory=0.5 * size)) == most(alike) == lab.LARGEST  # on disk
    assert most(replace(job(tmp_path).experiment, memory=3.5 * size)) == most(alike)


@pytest.mark.usefixtures("room")
def test_run_all_has_them_go_on_together_unless_told_one_at_a_time(tmp_path, monkeypatch):
    groups: list[int] = []
    monkeypatch.setattr(many, "run_together", lambda jobs, _: groups.append(len(jobs)))
    monkeypatch.setattr(many, "play", lambda *_: groups.append(1))
    jobs = on_gpu([job(tmp_path, seed=s) for s in range(3)])
    many.run_all(jobs)
    assert groups == [3]
    many.run_all(jobs, 1)
    assert groups == [3, 1, 1, 1]


def test_being_asked_to_stop_all_stop_and_are_gone_on_with(tmp_path):
    def jobs(folder: str) -> list[Job]:
        return [job(tmp_path / folder, seed=s, rounds=6) for s in (0, 1)]

    asked: list[int] = []

    def once(_job: Job, line: dict[str, Any] | None) -> None:
        if not asked and line and line["round"] == 1:
            asked.append(1)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="goes on"):
        run_together(jobs("stopped"), once)
    assert all(2 <= len(read_rounds(j.folder)) < 6 for j in jobs("stopped"))
    run_together(jobs("stopped"), silent)
    run_together(jobs("whole"), silent)
    for one, other in zip(jobs("stopped"), jobs("whole"), strict=True):
        assert finished(one)
        models = [load_file(j.folder / "model.safetensors") for j in (one, other)]
        torch.testing.assert_close(*models, rtol=0, atol=1e-6)


def test_what_is_wrong_with_one_is_said_with_its_name(tmp_path):
    def fails(mine: Job, line: dict[str, Any] | None) -> None:
        if mine.name.endswith("1") and line:
            raise fs.FedstrataError("no room on the disk")

    jobs = [job(tmp_path, seed=s) for s in (0, 1)]
    with pytest.raises(fs.FedstrataError, match="fedavg, seed 1: no room on the disk"):
        run_together(jobs, fails)
    assert [finished(j) for j in jobs] == [True, False]


def test_nothing_is_left_changed(tmp_path):
    threads, draw = torch.get_num_threads(), torch.get_rng_state()
    run_together([job(tmp_path, seed=s) for s in (0, 1)], silent)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), draw)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
