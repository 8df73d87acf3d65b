"""Worker processes: jobs and results, errors, workers that are killed, and nobody left behind."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstrata.errors import ClientError
from fedstrata.runtimes.crew import Crew, packed, shared, unpacked
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@contextmanager
def crew_of(work: Callable[[Any], Any], count: int = 2) -> Iterator[Crew]:
    crew = Crew(work, count)
    try:
        yield crew
    finally:
        crew.dismiss()


def alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as f:  # noqa: PTH123
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_every_job_is_done_once_and_its_number_comes_with_the_result():
    with crew_of(lambda job: (os.getpid(), job * 2), 3) as crew:
        for jobs in (range(10), range(2), []):
            done = dict(crew.each(jobs))
            assert {n: v for n, (_, v) in done.items()} == {n: 2 * n for n in jobs}
        assert {p for p, _ in dict(crew.each(range(30))).values()} <= {p.pid for p in crew.processes}


def test_a_worker_that_is_free_gets_the_next_job():
    """One job of a third of a second and eight of a hundredth: the other worker does the eight."""

    def work(seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    with crew_of(work) as crew:
        done = dict(crew.each([0.4, *[0.01] * 8]))
    assert sum(p == done[0] for p in done.values()) == 1


def test_workers_have_one_thread_of_torchs():
    with crew_of(lambda _: torch.get_num_threads()) as crew:
        assert set(dict(crew.each(range(4))).values()) == {1}


def test_large_jobs_and_large_results_pass_each_other():
    with crew_of(lambda v: v + 1) as crew:
        for n, v in crew.each(torch.full((300_000,), float(i)) for i in range(6)):
            assert torch.equal(v, torch.full((300_000,), n + 1.0))


class Odd(Exception):
    """Cannot be sent: it wants two things and says it has one."""

    def __init__(self, one: int, two: int):
        super().__init__(one)
        self.two = two


def test_an_error_arrives_with_its_kind_and_its_text():
    def work(job: int) -> int:
        if job == 3:
            raise KeyError("no such thing")
        if job == 4:
            raise Odd(7, 8)
        return job

    with crew_of(work) as crew, pytest.raises(KeyError, match="no such thing") as caught:
        list(crew.each(range(4)))
    assert "in work" in "".join(caught.value.__notes__)  # where it happened is not lost
    with crew_of(work) as crew, pytest.raises(ClientError, match="Odd: 7"):
        list(crew.each([4]))


def test_a_worker_that_cannot_send_its_result_says_so():
    with crew_of(lambda _: lambda: 0) as crew, pytest.raises(Exception, match="pickle"):
        list(crew.each([1]))


def test_a_worker_that_leaves_says_with_what():
    with crew_of(lambda _: os._exit(3)) as crew, pytest.raises(ClientError, match="ended with exit code 3"):
        list(crew.each([1]))


def test_a_killed_worker_is_a_sentence_at_once():
    def work(job: int) -> None:
        if job == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PATIENCE)

    began = time.perf_counter()
    with crew_of(work) as crew, pytest.raises(ClientError, match="ended by signal 9, perhaps for want of memory"):
        list(crew.each(range(2)))
    assert time.perf_counter() - began < PATIENCE / 2


def test_a_worker_that_died_between_jobs_is_a_sentence_too():
    with crew_of(lambda job: job) as crew:
        assert dict(crew.each(range(2))) == {0: 0, 1: 1}
        for process in crew.processes:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        with pytest.raises(ClientError, match="ended by signal 9"):
            list(crew.each(range(2)))


def test_nobody_is_left_behind_not_even_the_busy_and_those_take_a_second_together(monkeypatch: pytest.MonkeyPatch):
    before = set(multiprocessing.active_children())
    with crew_of(lambda job: job, 3) as crew:
        list(crew.each(range(3)))
        idle = [p.pid for p in crew.processes]
    crew = Crew(time.sleep, 4)
    assert next(crew.each([0, *[PATIENCE] * 9])) == (0, None)  # and now all are busy
    pids, waited = [p.pid for p in crew.processes], list[float]()
    for process in crew.processes:
        monkeypatch.setattr(process, "join", lambda t=None, join=process.join: (waited.append(t or 0.0), join(t)))
    crew.dismiss()
    assert 0.5 < sum(waited) < 1.5
    assert not any(alive(p) for p in idle + pids)
    assert set(multiprocessing.active_children()) <= before
    crew.dismiss()  # a second time does nothing


def test_too_many_processes_are_a_sentence_and_those_that_began_are_sent_home(monkeypatch: pytest.MonkeyPatch):
    fork, made = os.fork, list[int]()

    def twice() -> int:
        if len(made) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        made.append(fork())
        return made[-1]

    monkeypatch.setattr(os, "fork", twice)
    with pytest.raises(ClientError, match=r"could not be started .*unavailable.*; use fewer workers"):
        Crew(lambda job: job, 3)
    assert len(made) == 2
    assert not any(alive(p) for p in made)


def test_workers_may_be_made_by_a_thread_that_is_not_the_first():
    found: list[Any] = []

    def run() -> None:
        with crew_of(lambda job: job + 1) as crew:
            found.append(dict(crew.each(range(5))))

    thread = Thread(target=run)
    thread.start()
    thread.join(20)
    assert found == [{i: i + 1 for i in range(5)}]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(3, 4), (), (0,), (2, 0, 3)])
def test_what_is_shared_is_seen_by_everybody(dtype: torch.dtype, shape: tuple[int, ...]):
    board = shared(shape, dtype)
    assert (board.shape, board.dtype) == (torch.Size(shape), dtype)
    assert not board.any()

    def work(job: Tensor) -> bool:
        board.copy_(job)
        return True

    ones = torch.ones(shape, dtype=dtype)
    with crew_of(work, 1) as crew:
        assert dict(crew.each([ones])) == {0: True}
        assert torch.equal(board, ones)  # what a worker wrote, here
        board.zero_()
    with crew_of(lambda _: board.sum(), 1) as crew:
        board.copy_(ones)  # what is written here, in a worker
        assert dict(crew.each([0]))[0] == ones.sum()


TENSORS: dict[str, Tensor] = {
    "float": torch.randn(3, 4), "short": torch.randn(5).bfloat16(), "one": torch.tensor(2.5), "none": torch.zeros(0),
    "none of many": torch.zeros(2, 0, 3), "expanded": torch.arange(3.0).expand(4, 3), "part": torch.randn(9, 9)[::2, 3],
    "turned": torch.randn(2, 5).T, "whole": torch.arange(6).view(2, 3), "truth": torch.tensor([True, False]),
    "one truth": torch.tensor(True), "small": torch.tensor([200], dtype=torch.uint8), "half": torch.randn(2).half(),
    "complex": torch.randn(2, dtype=torch.complex64), "with a gradient": torch.randn(2, requires_grad=True) * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_packed_and_unpacked_as_they_are(name: str):
    tree = {"a": (TENSORS[name], 3, None, "text", frozenset({"x"})), "b": [TENSORS[name][..., None], {}]}
    back = unpacked(packed(tree))
    for v, w in ((tree["a"][0], back["a"][0]), (tree["b"][0], back["b"][0])):
        assert (v.dtype, v.shape) == (w.dtype, w.shape)
        assert torch.equal(v, w)
        assert not w.requires_grad
    assert back["a"][1:] == tree["a"][1:]
    assert back["b"][1] == {}
    if back["a"][0].numel():
        back["a"][0].zero_()  # they can be written to


def test_a_part_is_packed_without_the_whole():
    import pickle

    whole = torch.zeros(1_000_000)
    assert len(pickle.dumps(packed({"v": whole[:10]}))) < 2000
    assert len(pickle.dumps(packed({"v": torch.zeros(3).expand(1000, 3)}))) < 20_000


def test_tensors_pass_through_a_worker_unchanged():
    with crew_of(lambda job: job, 1) as crew:
        done = dict(crew.each([TENSORS]))[0]
    for name, v in TENSORS.items():
        assert torch.equal(done[name], v), name
        assert done[name].dtype == v.dtype
