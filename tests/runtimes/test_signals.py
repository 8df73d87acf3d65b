"""Workers end with the process that made them, however it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.patience import PATIENCE, eventually
from tests.runtimes.test_crew import alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no pool here")

SCRIPT = """
import os, sys, time
import torch
import fedstrata as fs
from fedstrata.runtimes import choose

choose.cores = lambda: 2
torch.set_num_threads(1)
first = os.getpid()

def loss(outputs, y):
    if os.getpid() != first:
        open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
        time.sleep(3600)
    return torch.nn.functional.cross_entropy(outputs, y, reduction="none")

clients = [(torch.randn(4, 6), torch.arange(4) % 3) for _ in range(4)]
fs.simulate("fedavg", torch.nn.Linear(6, 3), clients, rounds=1, engine="pool", loss=loss)
"""


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A run in a process group of its own, and its two workers, which are at work for an hour."""
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    args = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    run = subprocess.Popen(args, env=where, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert eventually(lambda: len(list(tmp_path.iterdir())) == 2 or run.poll() is not None)
        pids = [int(p.name) for p in tmp_path.iterdir()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        yield run, pids
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


def test_workers_do_not_outlive_a_process_that_was_killed(long_run: tuple[subprocess.Popen[str], list[int]]):
    run, pids = long_run
    run.kill()
    assert eventually(lambda: not any(map(alive, pids)))
    run.wait(PATIENCE)
    assert run.returncode == -signal.SIGKILL


def test_ctrl_c_ends_all_of_them_and_only_the_first_says_so(long_run: tuple[subprocess.Popen[str], list[int]]):
    run, pids = long_run
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    _, said = run.communicate(timeout=PATIENCE)
    assert not any(map(alive, pids))
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert said.count("Traceback") == 1
    assert "Process" not in said
    assert run.returncode in (-signal.SIGINT, 1)
