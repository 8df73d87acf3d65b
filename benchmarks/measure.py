"""What a command costs: its processor time, its memory, and what else the machine did meanwhile. Linux, no packages.

The command is watched from outside, so that watching takes nothing from it. Memory is the sum of the proportional set
sizes of all its processes (pages that several of them share count once), sampled as it runs.
"""

import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import IO

TICK = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Watched:
    """How a command ended and what it cost."""

    code: int | None  # None: it took longer than it may
    out: str
    err: str
    cost: dict[str, float]


def watch(
    command: Sequence[str], env: Mapping[str, str], folder: Path, limit: float, every: float = 0.5
) -> Watched:  # fmt: skip
    """Run a command in a folder for at most so many seconds; nothing that it started is left behind.

    Memory is read every so many seconds: more often for short runs, seldom where reading it would disturb.
    """
    _adopt_orphans()
    before = set(tree(os.getpid()))
    began, load, steal = perf_counter(), *busy_seconds()
    own, spent = os.times(), _reaped()
    peak, code, each = 0.0, None, {}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, env=env, cwd=folder)
        try:
            while code is None and perf_counter() - began < limit:
                pids = tree(child.pid)
                peak = max(peak, memory_mb(pids))
                each |= {pid: seconds for pid in pids if (seconds := cpu_seconds([pid], with_children=False))}
                code = _waited(child, every)
            wall = perf_counter() - began
        finally:  # also when we are interrupted
            _end(child, before)
        said = _all(out), _all(err)
    cpu = max(_reaped() - spent, sum(each.values()))  # a parent may let its children go uncounted, as Ray's does
    now, now_steal = busy_seconds()
    mine = cpu + sum(os.times()[:2]) - sum(own[:2])
    foreign = max(0.0, now - load - mine) / ((perf_counter() - began) * (os.cpu_count() or 1))
    cost = {"wall_seconds": wall, "cpu_seconds_whole": cpu, "peak_mb": peak, "foreign": foreign}
    return Watched(code, *said, {n: round(v, 3) for n, v in (cost | {"steal_seconds": now_steal - steal}).items()})


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    found = [root]
    for pid in found:
        for children in (PROC / str(pid) / "task").glob("*/children"):
            found += map(int, _text(children).split())
    return found


def cpu_seconds(pids: Sequence[int], with_children: bool = True) -> float:
    """Processor time of these processes, and of their children that are gone."""
    ticks = 0
    for pid in pids:
        fields = _text(PROC / str(pid) / "stat").rpartition(")")[2].split()
        ticks += sum(map(int, fields[11 : 15 if with_children else 13]))  # utime, stime, cutime, cstime
    return ticks / TICK


def memory_mb(pids: Sequence[int]) -> float:
    """Proportional set size of these processes in megabytes; where a process may not be read, its resident size."""
    total = 0.0
    for pid in pids:
        rollup = _text(PROC / str(pid) / "smaps_rollup") or _text(PROC / str(pid) / "status")
        lines = {line.split(":")[0]: line.split()[1] for line in rollup.splitlines() if line[:4] in ("Pss:", "VmRS")}
        total += float(lines.get("Pss", lines.get("VmRSS", 0))) / 1024
    return total


def busy_seconds() -> tuple[float, float]:
    """Processor time that the whole machine has used since it started, and what its host took from it (steal)."""
    first = _text(PROC / "stat").split("\n")[0].split()[1:]
    if not first:
        return 0.0, 0.0
    user, nice, system, _, _, irq, soft, steal, *_ = (int(v) / TICK for v in first)
    return user + nice + system + irq + soft + steal, steal


def foreign_load(seconds: float = 1.0) -> float:
    """The share of all cores that is busy while we do nothing."""
    before = busy_seconds()[0]
    sleep(seconds)
    return (busy_seconds()[0] - before) / (seconds * (os.cpu_count() or 1))


def wait_for_quiet(limit: float, load: float = 0.15) -> None:
    """Wait until the machine is quiet, but not for ever: what else it did is in every result."""
    end = perf_counter() + limit
    while perf_counter() < end and foreign_load() > load:
        pass


def _adopt_orphans() -> None:
    """Whatever loses its parent below us becomes our child: so none escapes the count or outlives the command."""
    if PROC.exists():
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _waited(child: subprocess.Popen, seconds: float) -> int | None:
    """The code with which it ended, or None if it still runs after so many seconds."""
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _end(child: subprocess.Popen, before: set[int]) -> None:
    """End what the command left running, after three seconds to go by itself; never what was there before."""
    if child.returncode is None:
        child.send_signal(signal.SIGINT)
    patience = perf_counter() + 3
    while left := set(tree(os.getpid())) - before:
        for pid in left:
            if perf_counter() > patience:
                _quietly(os.kill, pid, signal.SIGKILL)
            if pid != child.pid:
                _quietly(os.waitpid, pid, os.WNOHANG)
        child.poll()
        sleep(0.02)
    child.wait()


def _reaped() -> float:
    """Processor time of all our children that have ended."""
    t = os.times()
    return t.children_user + t.children_system


def _quietly(call, *args) -> None:
    """It may be gone already, or be a grandchild that only its parent can wait for."""
    try:
        call(*args)
    except (ProcessLookupError, ChildProcessError):
        return


def _all(file: IO[str]) -> str:
    """What was written into a file."""
    file.seek(0)
    return file.read()


def _text(path: Path) -> str:
    """What a file of /proc says; nothing once its process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
