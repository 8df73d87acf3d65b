"""Many runs: in processes of their own, found again, begun again, stopped together."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fedstrata as fs
from fedstrata.errors import DataError, FedstrataError
from fedstrata.lab import many
from fedstrata.lab.jobs import Job, finished, loaded
from fedstrata.lab.many import run_all
from fedstrata.record import read_rounds
from tests.patience import PATIENCE, eventually
from tests.runtimes.test_crew import alive

SMALL = {"model": "logreg", "rounds": 2, "partition": {"clients": 4}, "training": {"epochs": 1}}


def experiment(**settings) -> fs.Experiment:
    exp = fs.Experiment.of(SMALL | settings)
    return exp.settled(exp.dataset())


def jobs_in(folder: Path, count: int = 2, **settings) -> list[Job]:
    return [Job(f"run {i}", experiment(seed=i, **settings), folder / str(i)) for i in range(count)]


def without_seconds(folder: Path) -> list[dict]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in read_rounds(folder)]


def test_processes_of_their_own_give_the_same_runs(tmp_path):
    told: list[tuple[str, int | None]] = []
    run_all(jobs_in(tmp_path / "here"), 1)
    run_all(jobs_in(tmp_path / "aside"), 2, lambda job, line: told.append((job.name, line["round"] if line else None)))
    for i in ("0", "1"):
        assert without_seconds(tmp_path / "here" / i) == without_seconds(tmp_path / "aside" / i)
        assert [n for name, n in told if name == f"run {i}"] == [0, 1, None]
    cores = [json.loads((tmp_path / "aside" / i / "environment.json").read_text())["threads"] for i in ("0", "1")]
    assert max(cores) <= max(1, many.cores() // 2)


def test_runs_that_are_there_are_not_repeated(tmp_path):
    [job] = jobs_in(tmp_path, 1)
    run_all([job], 1)
    before = (job.folder / "rounds.jsonl").stat().st_mtime_ns
    told = []
    run_all([job], 1, lambda _, line: told.append(line))
    assert told == [None]
    assert (job.folder / "rounds.jsonl").stat().st_mtime_ns == before


class Broken(Exception):
    """Something happened."""


def test_a_run_that_was_broken_off_is_gone_on_with(tmp_path):
    whole, broken = (jobs_in(tmp_path / name, 1, rounds=6, checkpoint=2)[0] for name in ("whole", "broken"))
    run_all([whole], 1)

    def breaks(_: Job, line: dict | None) -> None:
        if line and line["round"] == 4:
            raise Broken

    with pytest.raises(Broken):
        run_all([broken], 1, breaks)
    assert not finished(broken)
    told = []
    run_all([broken], 1, lambda _, line: told.append(line and line["round"]))
    assert told == [4, 5, None]  # from the checkpoint after four rounds
    assert finished(broken)
    assert without_seconds(broken.folder) == without_seconds(whole.folder)


def test_a_folder_with_another_run_is_refused_and_left_alone(tmp_path):
    [job] = jobs_in(tmp_path, 1)
    run_all([job], 1)
    other = Job("other", experiment(rounds=3), job.folder)
    with pytest.raises(DataError, match="holds a run with other settings"):
        run_all([other], 1)
    assert finished(job)


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path):
    [job] = jobs_in(tmp_path, 1)
    job.folder.mkdir()
    (job.folder / "thesis.tex").write_text("all of it")
    with pytest.raises(DataError, match="is not an empty folder"):
        run_all([job], 1)
    assert (job.folder / "thesis.tex").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_says_in_which_run(processes, tmp_path):
    jobs = [Job(f"run {i}", experiment(method="moon", seed=i), tmp_path / str(i)) for i in range(2)]
    with pytest.raises(FedstrataError, match=r"run \d: Moon needs features"):
        run_all(jobs, processes)


def test_data_is_read_again_when_its_file_has_changed(tmp_path):
    file = tmp_path / "mine.csv"
    rows = [f"{i % 2},{i},{i * i % 7}" for i in range(20)]
    file.write_text("\n".join(["label,a,b", *rows]))
    exp = fs.Experiment.of({"data": str(file)})
    first = loaded(exp)
    assert loaded(exp) is first
    file.write_text("\n".join(["label,a,b", *rows, *rows]))
    os.utime(file, ns=(1, 1))
    assert len(loaded(exp).train[0]) == 2 * len(first.train[0])


def long_run(args: list[str], **options: Any) -> subprocess.Popen[str]:
    """A process in a group of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, *args], env=env, text=True, start_new_session=True, **pipes, **options)


def begun(folder: Path) -> int:
    """How many runs are going on below a folder."""
    return len(list(folder.rglob("rounds.jsonl")))


@pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")
def test_ctrl_c_ends_all_processes_and_the_first_says_so(tmp_path):
    methods = "compare fedavg fedprox --rounds 100000 --jobs 2 --out out --model logreg"
    run = long_run(["-m", "fedstrata", *methods.split()], cwd=tmp_path)
    try:
        assert eventually(lambda: begun(tmp_path) >= 2 or run.poll() is not None)
        pids = [int(p) for p in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]
        assert len(pids) == 2
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        _, said = run.communicate(timeout=PATIENCE)
        assert not any(map(alive, pids))
        assert run.returncode == 130
        assert said.splitlines()[-1].startswith("fedstrata: stopped")
        assert "Traceback" not in said
        assert list(tmp_path.glob("out/*/seed-*/checkpoint/*"))  # to go on from
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


def test_a_worker_ends_in_the_middle_of_a_run_when_the_first_process_is_gone(tmp_path):
    worker = long_run(["-c", "from fedstrata.lab.worker import main; main()", "1"])
    assert worker.stdin is not None
    order = {"settings": experiment(rounds=100_000).settings(), "folder": str(tmp_path / "run"), "modules": []}
    try:
        worker.stdin.write(json.dumps(order) + "\n")
        worker.stdin.flush()
        assert eventually(lambda: begun(tmp_path) == 1 or worker.poll() is not None)
        assert worker.poll() is None
        worker.communicate(timeout=PATIENCE)  # which closes its input
        assert worker.returncode == 0
    finally:
        worker.kill()
        worker.communicate()
