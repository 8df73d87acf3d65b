"""Worker processes that were forked off this one: they see everything that it held then, and what it maps for them."""

import mmap
import os
import pickle
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL
from math import prod
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from time import monotonic
from traceback import format_exception
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedstrata import memory
from fedstrata.errors import ClientError

Work = Callable[[Any], Any]
"""What a worker does with a job; tensors inside jobs and results are copied."""

PR_SET_PDEATHSIG = 1
"""Linux: the signal that a process gets when the one that made it is gone."""

PATIENCE = 1.0
"""Seconds that workers have to leave by themselves."""


def shared(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros that processes forked from now on share; memory is taken only where it is touched."""
    size = prod(shape) * dtype.itemsize
    return torch.frombuffer(mmap.mmap(-1, max(1, size)), dtype=torch.uint8)[:size].view(dtype).view(tuple(shape))


class Crew:
    """Some workers, one thread each, that wait for jobs until they are dismissed or this process ends."""

    def __init__(self, work: Work, count: int):
        self.ends: list[Any] = []  # Connections
        self.processes = []
        context, prctl = get_context("fork"), CDLL(None).prctl
        for _ in range(count):
            mine, theirs = context.Pipe()
            given = work, theirs, [*self.ends, mine], prctl, os.getpid()
            process = context.Process(target=_serve, args=given, daemon=True)
            self.ends.append(mine)
            try:
                with _quietly():
                    process.start()
            except OSError as e:
                self.dismiss()
                raise ClientError(f"a worker process could not be started ({e.strerror}); use fewer workers") from e
            finally:
                theirs.close()
            self.processes.append(process)

    def __len__(self) -> int:
        return len(self.ends)

    def each(self, jobs: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """(number of the job, its result), as they come. A worker gets its next job when it has done the last."""
        waiting, busy = iter(enumerate(jobs)), dict[Connection, int]()
        for end in self.ends:
            self._hand_out(end, waiting, busy)
        while busy:
            for end in wait(list(busy)):
                assert isinstance(end, Connection)
                number, result = busy.pop(end), self._result(end)
                self._hand_out(end, waiting, busy)
                yield number, result

    def _hand_out(self, end: Connection, waiting: Iterator[tuple[int, Any]], busy: dict[Connection, int]) -> None:
        for number, job in waiting:
            try:
                end.send_bytes(pickle.dumps(packed(job)))
            except OSError:
                raise self._lost(end) from None
            busy[end] = number
            return

    def _result(self, end: Connection) -> Any:
        try:
            done, result = pickle.loads(end.recv_bytes())
        except (EOFError, OSError):
            raise self._lost(end) from None
        if not done:
            raise result
        return unpacked(result)

    def _lost(self, end: Connection) -> ClientError:
        process = self.processes[self.ends.index(end)]
        process.join(1)
        code = process.exitcode
        why = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return ClientError(f"a worker process ended {why}, perhaps for want of memory; use fewer workers, or 'apart'")

    def dismiss(self) -> None:
        """Send the workers home; those that do not go are stopped."""
        for end in self.ends:
            end.close()
        deadline = monotonic() + PATIENCE
        for process in self.processes:
            process.join(max(0.0, deadline - monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self.ends, self.processes = [], []


def aside(work: Callable[[], Any]) -> Any:
    """What something gives in a process of its own, which leaves no trace in this one."""
    crew = Crew(lambda _: work(), 1)
    try:
        return dict(crew.each([None]))[0]
    finally:
        crew.dismiss()


def can_differentiate() -> bool:
    """Whether a process that is forked now can take gradients: torch refuses once it has threads for a GPU."""
    try:
        return aside(_differentiates)
    except Exception:
        return False


def packed(tree: Any, copy: bool = True) -> Any:
    """The same with tensors as bytes: each by itself, and not the whole of what it is a part of.

    Without a copy, where there need be none, these are the bytes themselves: for what is sent off at once.
    """

    def pack(v: Any) -> Any:
        if not isinstance(v, Tensor):
            return v
        v = v.detach().cpu()
        order = sorted(range(v.dim()), key=lambda d: -v.stride(d))  # as they lie, or products may differ in a last bit
        order = order if v.permute(order).is_contiguous() else list(range(v.dim()))
        turned = v.permute(order)
        flat = turned.reshape(-1)
        if copy or flat.stride(0) != 1:
            flat = torch.empty(flat.shape, dtype=v.dtype).copy_(flat)
        return _Packed(flat.view(torch.uint8).numpy(), v.dtype, tuple(turned.shape), order)

    return tree_map(pack, tree)


def unpacked(tree: Any, copy: bool = True) -> Any:
    """The other way round; bytes that cannot be written to are copied, or else must only be read."""

    def unpack(v: Any) -> Any:
        if not isinstance(v, _Packed):
            return v
        back = [v.order.index(d) for d in range(len(v.order))]
        if not v.bytes.size:
            return torch.empty(v.shape, dtype=v.dtype).permute(back)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            flat = torch.from_numpy(v.bytes if v.bytes.flags.writeable or not copy else v.bytes.copy())
        return flat.view(v.dtype).view(v.shape).permute(back)

    return tree_map(unpack, tree)


class _Packed:
    def __init__(self, bytes: Any, dtype: torch.dtype, shape: tuple[int, ...], order: Sequence[int]):
        self.bytes, self.dtype, self.shape, self.order = bytes, dtype, shape, order


def _serve(work: Work, end: Connection, others: Sequence[Connection], prctl: Any, parent: int) -> None:
    """A worker's life."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # or it would go on with its job for nobody
    if os.getppid() != parent:
        os._exit(0)
    for other in others:
        other.close()  # or it would never learn that the first process is gone
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, signal.SIG_IGN)  # that is for the first process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    torch.set_num_threads(1)
    memory.keep()
    while True:
        try:
            job = pickle.loads(end.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        try:
            answer = pickle.dumps((True, packed(work(unpacked(job)))))
        except Exception as e:
            answer = pickle.dumps((False, portable(e)))
        try:
            end.send_bytes(answer)
        except OSError:
            os._exit(0)  # nobody waits for it any more


def _differentiates() -> bool:
    x = torch.ones(1, requires_grad=True)
    return bool(torch.autograd.grad((x * x).sum(), x)[0] == 2)


def portable(e: Exception) -> Exception:
    """An error that survives being sent, and says where it was; with its text alone where it does not by itself."""
    where = f"In a worker process:\n{''.join(format_exception(e))}"
    try:
        sent = pickle.loads(pickle.dumps(e))
    except Exception:
        sent = ClientError(f"{type(e).__name__}: {e}")
    sent.add_note(where)
    return sent


@contextmanager
def _quietly() -> Iterator[None]:
    """A process may be forked: one with threads too, as the workers start none, and no Ctrl-C gets in between."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
