"""The processes of a federation, found by a mark, and ended also when whoever started them was killed.

Flower's daemons start others, some of them in sessions of their own. All inherit the environment, where the mark is;
of those that hide it, the mark is on the command line, or they are in the session of one that shows it.

Run as a program, this file is the keeper: it reads a mark from its standard input, waits for the end of that, which
comes when the process at the other end stops or dies, and ends all that carry the mark. It needs nothing but Python.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MARK = "FEDSTRATA_FEDERATION"
"""The variable that carries the mark."""

GRACE = 5.0
"""Seconds between asking and killing."""


def marked(mark: str) -> list[int]:
    """The processes of a federation that are running; none where there is no /proc."""
    seen = {int(p.name): _session(p) for p in Path("/proc").glob("[0-9]*") if p.name.isdigit()}
    here = {pid: found for pid, found in seen.items() if found is not None}
    mine = {pid for pid in here if _shows(Path(f"/proc/{pid}"), mark)}
    first: dict[int, int] = {}  # of each session, whether its leader is still there or not
    for pid in sorted(here, key=lambda p: (here[p][1], p)):
        first.setdefault(here[pid][0], pid)
    ours = {session for session, pid in first.items() if pid in mine}  # never that of a person who called us
    return sorted(pid for pid, (session, _) in here.items() if pid in mine or session in ours)


def end(pids: Iterable[int], number: int) -> None:
    """Send a signal to these processes, as far as they are still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def sweep(mark: str, grace: float = GRACE) -> None:
    """End all processes of a federation: ask, and kill what is still there a little later."""
    end(marked(mark), signal.SIGTERM)
    until = time.monotonic() + grace
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    until = time.monotonic() + grace
    while left:  # those are killed at least once, however long it took to find them
        end(left, signal.SIGKILL)
        time.sleep(0.1)
        left = marked(mark) if time.monotonic() < until else []


def keeper(mark: str) -> "subprocess.Popen[bytes]":
    """A process that sweeps when its standard input is closed, by us or by our end."""
    found = subprocess.Popen([sys.executable, "-I", __file__], stdin=subprocess.PIPE, start_new_session=True)
    assert found.stdin is not None
    found.stdin.write(f"{mark}\n".encode())
    found.stdin.flush()
    return found


def _session(process: Path) -> tuple[int, int] | None:
    """The session of a process and when it began; None where it is gone, or dead and not yet buried."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (int(fields[3]), int(fields[19]))


def _shows(process: Path, mark: str) -> bool:
    for name, text in (("environ", f"{MARK}={mark}\0"), ("cmdline", mark)):
        with suppress(OSError):
            if text.encode() in (process / name).read_bytes() + b"\0":
                return True
    return False


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = sys.stdin.readline().strip()
    sys.stdin.read()
    if told:
        sweep(told)
