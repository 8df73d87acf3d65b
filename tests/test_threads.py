"""Threads that share out work."""

import os
import threading
from multiprocessing import get_context

import pytest
import torch

from fedstrata.threads import allowed, pieces, quiet, spread, threads
from tests.patience import PATIENCE


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("jobs", [0, 1, 3, 20])
def test_results_come_in_the_order_of_the_jobs_from_several_threads(count, jobs):
    assert spread(lambda j: j * j, range(jobs), count) == [j * j for j in range(jobs)]


def test_jobs_are_done_at_the_same_time():
    both = threading.Barrier(2, timeout=PATIENCE)
    spread(lambda _: both.wait(), range(2), 2)  # each waits for the other
    assert not both.broken


@pytest.mark.parametrize("bad", [0, 7])
def test_an_error_in_any_thread_is_raised(bad):
    def work(j):
        if j == bad:
            raise ValueError(f"job {j}")

    with pytest.raises(ValueError, match=f"job {bad}"):
        spread(work, range(8), 2)


def test_a_forked_process_has_threads_of_its_own():
    spread(abs, range(4), 2)  # so that this process has some
    mine, theirs = get_context("fork").Pipe()

    def child():
        theirs.send(spread(abs, [-1, -2, -3], 2))
        os._exit(0)

    process = get_context("fork").Process(target=child)
    process.start()
    assert mine.poll(20)
    assert mine.recv() == [1, 2, 3]
    process.join()


@pytest.mark.parametrize("n", [1, 2, 7, 100])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_pieces_cover_everything_once(n, count):
    cut = pieces(n, count)
    assert [i for a, b in cut for i in range(a, b)] == list(range(n))
    assert len(cut) == min(n, count)
    assert max(b - a for a, b in cut) - min(b - a for a, b in cut) <= 1


def test_quiet_leaves_torch_one_thread_and_ours_as_many_as_before():
    before = torch.get_num_threads()
    with threads(2):
        with quiet():
            assert torch.get_num_threads() == 1
            assert allowed() == 2
            with quiet():
                assert allowed() == 2
        with quiet(False):
            assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before
