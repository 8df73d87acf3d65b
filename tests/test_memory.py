import ctypes
import gc
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from fedstrata import memory


def address(t: torch.Tensor) -> int:
    return t.data_ptr()


def lend(n: int = 1000) -> torch.Tensor:
    return torch.from_numpy(memory.array(n, np.float32))


def test_memory_is_lent_again_once_nobody_holds_it():
    one = lend()
    place = address(one)
    other = lend()
    assert address(other) != place
    del one
    gc.collect()
    assert address(lend()) == place


def test_a_view_holds_it():
    for view in (lambda t: t[5:], lambda t: t.view(10, 100), lambda t: t.numpy()[3:], lambda t: t.detach()):
        whole = lend()
        place, held = address(whole), view(whole)
        del whole
        gc.collect()
        assert address(lend()) != place
        del held
    rows = memory.array(24, np.float64).reshape(2, 3, 4)
    place, part = rows.ctypes.data, rows[1, :, 2]
    del rows
    gc.collect()
    assert memory.array(24, np.float64).ctypes.data != place
    assert part.shape == (3,)


def test_little_is_kept():
    held = [lend(500) for _ in range(memory.KEPT + 3)]
    del held
    gc.collect()
    assert len(memory._spare[500, "f"]) == memory.KEPT
    for n in range(600, 600 + memory.KINDS):
        lend(n)
    gc.collect()
    assert (500, "f") not in memory._spare
    assert len(memory._spare) == memory.KINDS


def faults(megabytes: int) -> int:
    """Pages that are brought in while a large tensor is filled and let go."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(megabytes << 18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="malloc is not glibc's here")
def test_freed_memory_is_kept_within_a_run_and_given_back_after_it():
    def held() -> int:
        """Megabytes of this process."""
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

    fresh = [faults(80) for _ in range(20)]
    with memory.kept():
        again = [faults(80) for _ in range(20)]
        within = held()
    assert min(fresh) > 30  # some MB each where the system has large pages
    assert sum(again) < sum(fresh) / 3
    assert held() < within - 50
    assert faults(80) > 30
