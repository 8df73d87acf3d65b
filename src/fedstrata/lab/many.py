"""Many runs: in processes of their own, each with its share of the cores, or together on a GPU; none is repeated."""

import json
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryFile
from threading import Thread
from typing import IO, Any

from fedstrata import errors
from fedstrata.errors import FedstrataError, check
from fedstrata.experiment import Experiment
from fedstrata.lab.jobs import Job, Told, finished, named, play
from fedstrata.lab.together import companies, run_together
from fedstrata.threads import cores

PATIENCE = 3.0
"""Seconds for processes that are told to stop to write a checkpoint."""


def run_all(jobs: Sequence[Job], processes: int | None = None, told: Told | None = None) -> None:
    """Run what is not finished yet, so many at a time.

    Each process has an equal share of the cores. A single one is this one, and unless its number was given, runs that
    can go on together on a GPU do.
    """
    check(processes is None or processes >= 1, f"jobs must be at least 1; got {processes}")
    say = told or (lambda job, line: None)
    left: list[Job] = []
    for job in jobs:
        if finished(job):
            say(job, None)
        else:
            left.append(job)
    count = min(processes or _fitting(left), max(1, len(left)))
    if count == 1 or not all(map(_importable, left)):
        for some in companies(left) if processes is None else [[job] for job in left]:
            if len(some) > 1:
                run_together(some, say)
                continue
            with named(some[0]):
                play(some[0].experiment, some[0].folder, partial(say, some[0]))
            say(some[0], None)
    else:
        _run_aside(left, count, say)


def _fitting(jobs: Sequence[Job]) -> int:
    """One a core; neither a GPU nor a Ray cluster is shared."""
    return cores() if all(job.experiment.device == "cpu" and job.experiment.engine != "ray" for job in jobs) else 1


def _importable(job: Job) -> bool:
    """Whether another process can know its parts: those that a script defines by itself are known here alone."""
    return not any(m == "__main__" for m in _modules(job.experiment))


def _modules(exp: Experiment) -> list[str]:
    """Where its parts, its training and its partition are defined."""
    return sorted({type(v).__module__ for v in (*exp.recipe.parts().values(), exp.training, exp.partition)})


def _run_aside(jobs: Sequence[Job], count: int, say: Told) -> None:
    """In processes of their own, which end with this one however it ends."""
    todo, events = deque(jobs), SimpleQueue[tuple[Job, dict[str, Any]]]()
    threads: list[Thread] = []
    try:
        with _workers(count) as workers:
            for worker in workers:
                threads.append(Thread(target=_hand_out, args=(worker, todo, events), daemon=True))
                threads[-1].start()
            left = len(jobs)
            while left:
                job, said = events.get()
                if "error" in said:
                    kind = getattr(errors, said["error"], FedstrataError)
                    raise kind(f"{job.name}: {said['text']}")
                say(job, said.get("round"))
                left -= "round" not in said
    finally:
        for thread in threads:
            thread.join()


def _hand_out(worker: Popen[str], todo: deque[Job], events: SimpleQueue[tuple[Job, dict[str, Any]]]) -> None:
    """Give a worker one job after another, and pass on what it says; then let it go."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    while todo:
        with suppress(IndexError):  # another took the last one
            job = todo.popleft()
            if not _handed(job, worker.stdin, worker.stdout, events):
                events.put((job, {"error": "FedstrataError", "text": "the process of this run ended before its time"}))
                break
    with suppress(OSError):
        worker.stdin.close()
    worker.stdout.close()


def _handed(job: Job, to: IO[str], back: IO[str], events: SimpleQueue[tuple[Job, dict[str, Any]]]) -> bool:
    """Whether a worker took a job and brought it to an end, good or bad."""
    exp = job.experiment
    order = {"settings": exp.settings(), "folder": str(job.folder), "modules": _modules(exp)}
    with suppress(OSError):  # it is gone
        to.write(json.dumps(order) + "\n")
        to.flush()
        for line in back:
            said = json.loads(line)
            events.put((job, said))
            if "round" not in said:
                return True
    return False


@contextmanager
def _workers(count: int) -> Iterator[list[Popen[str]]]:
    """So many processes that wait for jobs; killed at the end of the block."""
    paths = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
    env = os.environ | {"PYTHONPATH": paths}
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from fedstrata.lab.worker import main; main()"
    )
    args = [sys.executable, "-P", "-c", script, str(max(1, cores() // count))]
    workers: list[Popen[str]] = []
    with TemporaryFile() as noise:
        try:
            start = partial(Popen[str], args, stdin=PIPE, stdout=PIPE, stderr=noise, env=env, text=True)
            workers.extend(start(encoding="utf-8") for _ in range(count))
            yield workers
        finally:
            _end(workers)


def _end(workers: Sequence[Popen[str]]) -> None:
    """Give those that work a moment to keep what they have, and no more."""
    try:
        for worker in workers:
            worker.terminate()
        with suppress(TimeoutExpired):
            for worker in workers:
                worker.wait(PATIENCE / len(workers))
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.wait()
