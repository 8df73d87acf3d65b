"""The compiled loops are optional, come late, and do no harm to what else runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedstrata import fused
from fedstrata.loops import working

SERVE = """
import torch, fedstrata as fs
from fedstrata import fused
model = {"a.w": torch.zeros(SIZE), "a.b": torch.zeros(3)}
torch.manual_seed(0)
replies = [fs.Reply(k, {n: torch.randn_like(t) for n, t in model.items()}, 1 + k) for k in range(4)]
out = fs.server_step(fs.recipes.fedlws(), model | {"a.w": torch.ones(SIZE)}, replies)
"""


def run(code: str, size: int, **env: str) -> str:
    """What a fresh process says."""
    code = f"SIZE = {size}\n" + code
    told = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, check=True, capture_output=True, text=True
    )
    return told.stdout.strip()


def test_a_small_run_does_not_import_numba():
    assert run(SERVE + "import sys; print('numba' in sys.modules)", 100) == "False"


@pytest.mark.slow
def test_a_large_one_does_where_it_is_there_and_gives_the_same_without():
    pytest.importorskip("numba")
    last = "\nimport sys; print(bool(sys.modules.get('numba')), repr(float(out.model['a.w'].double().sum())))"
    size = fused.SMALLEST // 4 + 1
    with_numba = run(SERVE + last, size).split()
    without = run("import sys; sys.modules['numba'] = None\n" + SERVE + last, size).split()
    assert (with_numba[0], without[0]) == ("True", "False")
    assert float(with_numba[1]) == pytest.approx(float(without[1]), rel=1e-5)


@pytest.mark.slow
def test_where_no_cache_can_be_written_it_is_compiled_each_time(tmp_path: Path):
    pytest.importorskip("numba")
    code = (
        "from numba.core import caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "import numpy as np\n"
        "from fedstrata import kernels\n"
        "kernels.square(np.full(3, 2.0), np.arange(3), np.arange(1, 4), out := np.zeros(3), 0, 2)\n"
        "print(out.tolist())\n"
    )
    assert run(code, 0) == "[4.0, 4.0, 0.0]"


def test_a_numba_that_does_not_work_is_said_and_done_without(monkeypatch: pytest.MonkeyPatch):
    kernels = pytest.importorskip("fedstrata.kernels")

    def broken() -> None:
        raise ValueError("no such instruction")

    monkeypatch.setattr(kernels, "try_out", broken)
    working.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="numba does not work here"):
            assert not fused.fits(torch.zeros(2, fused.SMALLEST), torch.zeros(fused.SMALLEST))
    finally:
        working.cache_clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_may_fork_after_the_loops_ran(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("numba")
    from tests.test_updates import LAYOUT, answers, updates

    monkeypatch.setattr(fused, "SMALLEST", 0)
    monkeypatch.setattr(fused, "STREAM", 40)
    monkeypatch.setattr(fused, "SHARE", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    before = answers(updates(LAYOUT, 4, 0))
    child = os.fork()
    if child == 0:  # never returns: it would run the rest of the tests too
        there = answers(updates(LAYOUT, 4, 0))
        same = all(torch.equal(v, there[n]) for n, v in before.items())
        os._exit(0 if same and float(torch.ones(10) @ torch.ones(10)) == 10 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    after = answers(updates(LAYOUT, 4, 0))
    assert all(torch.equal(v, after[n]) for n, v in before.items())
