"""Ctrl-C and SIGTERM while `fedstrata run` is going on: the last line says how to go on, and the code which it was."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE, eventually


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another thing there")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_says_how_to_go_on(number: int, code: int, tmp_path: Path):
    call = [sys.executable, "-m", "fedstrata", "run", "--rounds", "100000", "--clients", "3", "--out", "mine"]
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    how = {"cwd": tmp_path, "env": where, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    run = subprocess.Popen([*call, "--set", "evaluate_every=10"], **how)
    try:
        assert eventually((tmp_path / "mine" / "rounds.jsonl").exists)
        os.killpg(run.pid, number)
        said = run.communicate(timeout=PATIENCE)[1]
    finally:
        if run.poll() is None:
            run.kill()
            run.communicate()
    last = said.splitlines()[-1]
    assert last.startswith("fedstrata: stopped after ")
    assert last.endswith("go on by fedstrata run --resume mine")
    assert run.returncode == code
