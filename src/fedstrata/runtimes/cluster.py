"""Worker processes on a Ray cluster, of this machine or of many: they live long, and lost jobs are done again."""

import logging
import os
import signal
import sys
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from socket import create_connection
from tempfile import TemporaryDirectory
from typing import Any

from fedstrata.errors import ClientError, SettingError, in_short
from fedstrata.runtimes.crew import packed, portable, unpacked
from fedstrata.threads import cores

Answer = tuple[bool, Any]
"""(True, a result) or (False, an error)."""

TRIES = 3
"""Workers that may be lost over one job, and in a row before they are ready."""

PATIENCE = 300.0
"""Seconds that the cluster has to start a worker where there is no other."""

ANSWERS = 10.0
"""Seconds that a cluster has to answer."""

STORE = 256 << 20
"""Bytes of a local cluster's object store besides what is known to lie in it; taken only where touched."""

SAID_BY_US = "A worker died or was killed while|has been marked dead because|Raylet is terminated"
"""What Ray need not print when a worker or a machine is lost."""

LONGEST = 40
"""Characters of a folder in which Ray can have its sockets, whose names Linux cuts at 107."""


class Hand:
    """A worker: it is given its tools once, and does one job after another with them."""

    def __init__(self, paths: Sequence[str]):
        sys.path.extend(p for p in paths if p not in sys.path)  # the modules of the first process, where it has them
        self.work: Callable[..., Any] | None = None

    def equip(self, make: Callable[..., Any], *given: Any) -> Answer:
        """Make the tools; what is given may be read, and lies where all workers of a machine see it."""
        try:
            self.work = make(*given)
        except Exception as e:
            return False, portable(e)
        return True, None

    def do(self, common: Any, job: Any) -> Answer:
        """Do a job."""
        assert self.work is not None
        try:
            return True, packed(self.work(unpacked(common), unpacked(job)), copy=False)
        except Exception as e:
            return False, portable(e)


class Cluster:
    """A Ray cluster and our workers on it, one a core or one a GPU.

    It is the one that this process is connected to already, or the one at an address, or one of our own on this
    machine, which ends with us.
    """

    def __init__(self, address: str | None = None, workers: int | None = None, gpus: bool = False, holds: int = 0):
        self.ray = _imported()
        self.own = not self.ray.is_initialized()
        self.folder: TemporaryDirectory[str] | None = None
        self.tools: tuple[Any, ...] = ()
        self.hands, self.idle, self.starting = set[Any](), list[Any](), dict[Any, Any]()
        self.failed = 0  # workers in a row that were lost before they were ready
        if self.own:
            self._connect(address or os.environ.get("RAY_ADDRESS"), workers, holds)
        kind = "GPU" if gpus else "CPU"
        there = int(self.ray.cluster_resources().get(kind, 0))
        if there == 0:
            self.close()
            raise SettingError(f"the Ray cluster has no {kind}; add a machine that has one, or change the device")
        self.workers = min(workers or there, there)
        self.kind = self.ray.remote(num_cpus=1, num_gpus=int(gpus), max_restarts=0, scheduling_strategy="SPREAD")(Hand)

    def put(self, value: Any) -> Any:
        """Something that all workers can read, sent to every machine once, when it is needed there."""
        return self.ray.put(value)

    def equip(self, make: Callable[..., Any], *given: Any) -> None:
        """Let every worker, from now on, do its jobs with make(*given); what was put is handed over as it is."""
        self.tools = make, *given
        self.idle, self.starting = [], {hand.equip.remote(*self.tools): hand for hand in self.hands}

    def each(self, job: Callable[[int], Any], numbers: Iterable[int], common: Any) -> Iterator[tuple[int, Any]]:
        """(number of the job, its result), as they come. A worker gets its next job when it has done the last.

        The job of a worker that was lost is made again, and done by another.
        """
        todo, busy, lost = deque(numbers), dict[Any, tuple[Any, int]](), Counter[int]()
        try:
            for _ in range(self.workers - len(self.hands)):
                self._hire()
            while todo or busy:
                self._hand_out(job, todo, busy, common)
                ref = self._first(busy)
                if ref not in busy:
                    self._begin(ref)
                    continue
                hand, number = busy.pop(ref)
                self.idle += [hand] if hand in self.hands else []
                self._hand_out(job, todo, busy, common)  # before its result is on its way here
                try:
                    result = self._result(ref)
                except self.ray.exceptions.RayError as e:
                    todo.appendleft(number)
                    if hand in self.hands:  # else it was lost over the job before this one
                        lost[number] += 1
                        self._replace(hand, e, lost[number])
                else:
                    yield number, result
        except BaseException:
            self.dismiss()  # some are still at work, and nobody waits for them any more
            raise

    def dismiss(self) -> None:
        """Send the workers home."""
        for hand in self.hands:
            self.ray.kill(hand)
        self.hands, self.idle, self.starting = set(), [], {}

    def close(self) -> None:
        """Send the workers home, and end what was started for them."""
        self.dismiss()
        if self.own:
            self.ray.shutdown()
        if self.folder is not None:
            self.folder.cleanup()

    def _connect(self, address: str | None, workers: int | None, holds: int) -> None:
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is not None:
            cure = "start one by `ray start --head`, and set RAY_AUTH_MODE=token where it has a token (docs/ray.md)"
            with _sigterm_as_before(), _said_of(f"no Ray cluster can be used at {address}", cure):
                _knock(address)
                self.ray.init(address=address, **quiet)
            return
        self.folder = TemporaryDirectory(prefix="fedstrata-", ignore_cleanup_errors=True)
        where = {"_temp_dir": self.folder.name} if len(self.folder.name) <= LONGEST else {}
        count = min(workers or cores(), cores())
        cannot = "Ray cannot be started on this machine", "use engine = 'pool'"
        with _sigterm_as_before(), _loopback_only(), _said_of(*cannot):
            self.ray.init(
                address="local",
                num_cpus=count,
                include_dashboard=False,
                object_store_memory=STORE + holds,
                _node_ip_address="127.0.0.1",
                _system_config={"enable_metrics_collection": False},
                **quiet,
                **where,
            )

    def _hire(self) -> None:
        hand = self.kind.remote([p or os.getcwd() for p in sys.path])  # noqa: PTH109
        self.hands.add(hand)
        self.starting[hand.equip.remote(*self.tools)] = hand

    def _hand_out(self, job: Callable[[int], Any], todo: deque[int], busy: dict[Any, Any], common: Any) -> None:
        while todo and self.idle:
            hand, number = self.idle.pop(), todo.popleft()
            busy[hand.do.remote(common, packed(job(number), copy=False))] = hand, number

    def _first(self, busy: dict[Any, Any]) -> Any:
        """The first of all that is under way to come to its end."""
        while True:
            refs = [*busy, *self.starting]
            ready, _ = self.ray.wait(refs, timeout=PATIENCE, fetch_local=False)
            if ready:
                return ready[0]
            if not busy:
                has = self.ray.available_resources()
                free = f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs are free"
                raise ClientError(f"the Ray cluster has started no worker within {PATIENCE:g} s ({free}); add machines")

    def _begin(self, ref: Any) -> None:
        """A worker is ready, or was lost before that."""
        hand = self.starting.pop(ref)
        try:
            self._result(ref)
        except self.ray.exceptions.RayError as e:
            self.failed += 1
            self._replace(hand, e, self.failed)
        else:
            self.idle.append(hand)
            self.failed = 0

    def _result(self, ref: Any) -> Any:
        try:
            done, result = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as e:
            why = str(e).strip().splitlines()[-1]
            raise ClientError(f"a worker of the Ray cluster cannot take its job ({why})") from e
        if not done:
            raise result
        return unpacked(result)

    def _replace(self, hand: Any, error: Exception, times: int) -> None:
        """Another in place of a worker that was lost, unless too many were."""
        why = in_short(error).rstrip(".")
        if times >= TRIES:
            cure = "perhaps for want of memory: use a smaller chunk, or fewer workers"
            raise ClientError(f"{times} workers of the Ray cluster were lost over the same job ({why}), {cure}")
        said = f"a worker of the Ray cluster was lost ({why}); another does what it had"
        warnings.warn(said, RuntimeWarning, stacklevel=2)
        self.hands.remove(hand)
        self.idle = [h for h in self.idle if h is not hand]
        self.ray.kill(hand)  # it may be out of reach only
        self._hire()


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody calls home
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", SAID_BY_US)
    try:
        return import_module("ray")
    except ImportError:
        raise SettingError("engine = 'ray' needs ray: pip install 'fedstrata[ray]'") from None


def _knock(address: str) -> None:
    """Raise an OSError where nobody answers, for which Ray itself would wait for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        create_connection((host.strip("[]"), int(port)), ANSWERS).close()


@contextmanager
def _sigterm_as_before() -> Iterator[None]:
    """Ray takes SIGTERM for itself, and a run is to stop by it when its round ends."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Ray listens to this machine alone; anybody who can reach a cluster can run what he likes on it.

    It takes 127.0.0.1 for the machine's other address, unless clusters are out of the question.
    """
    constants: Any = import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _said_of(what: str, cure: str) -> Iterator[None]:
    """What Ray says when it cannot be had, as a sentence."""
    try:
        yield
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as e:
        raise SettingError(f"{what} ({in_short(e)}); {cure}") from e
