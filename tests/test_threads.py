"""Threads that share out work."""

import os
import threading
import time
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


@pytest.mark.parametrize("here", [True, False])
def test_no_job_is_begun_after_an_error_and_those_begun_are_waited_for(here):
    me, begun, ended = threading.get_ident(), [], []
    both = threading.Barrier(2, timeout=PATIENCE)

    def work(j):
        begun.append(j)
        if j < 2:
            both.wait()  # one each
        if (threading.get_ident() == me) == here:
            raise KeyboardInterrupt
        time.sleep(0.05)
        ended.append(j)

    with pytest.raises(KeyboardInterrupt):
        spread(work, range(100), 2)
    assert len(begun) == len(ended) + 1 < 100
    time.sleep(0.1)
    assert len(begun) == len(ended) + 1
    assert spread(abs, [-1, -2, -3], 2) == [1, 2, 3]  # its threads serve on


def test_a_job_may_spread_work_itself():
    def work(j):
        return sum(spread(lambda i: i * j, range(4), 3))

    assert spread(work, range(20), 3) == [6 * j for j in range(20)]


def test_several_threads_may_spread_work_at_once():
    found: dict[int, list[list[int]]] = {}

    def ask(k):
        found[k] = [spread(lambda j: j * k, range(10), 2) for _ in range(50)]

    asking = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(PATIENCE)
    assert found == {k: 50 * [[j * k for j in range(10)]] for k in range(6)}


def test_work_is_not_waited_for_that_no_thread_has_begun():
    free, busy = threading.Event(), threading.Event()

    def hold(_):
        busy.set()
        assert free.wait(PATIENCE)

    holding = threading.Thread(target=lambda: spread(hold, range(8), 8))  # more than any other test asks for
    holding.start()
    assert busy.wait(PATIENCE)
    try:
        assert spread(abs, [-1, -2, -3], 2) == [1, 2, 3]
    finally:
        free.set()
        holding.join(PATIENCE)


def test_no_more_threads_are_made_than_were_ever_asked_for():
    spread(abs, range(9), 5)
    before = threading.active_count()
    for count in range(2, 6):
        spread(abs, range(9), count)
    assert threading.active_count() == before


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
