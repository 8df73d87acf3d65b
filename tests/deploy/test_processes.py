"""Processes are found by their mark, and end with whoever started them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from fedstrata.deploy.local import named
from fedstrata.deploy.processes import MARK, end, keeper, marked, sweep
from fedstrata.errors import SettingError
from tests.patience import PATIENCE, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc here")

CHILD = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], start_new_session=True).wait()"


@pytest.fixture
def mark() -> Iterator[str]:
    name = f"test-{uuid4().hex}"
    yield name
    end(marked(name), signal.SIGKILL)


def start(mark: str, code: str) -> "subprocess.Popen[bytes]":
    env, pipe = os.environ | {MARK: mark}, subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdin=pipe, stdout=pipe, start_new_session=True)


def closed(process: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError):
        process.communicate()


def test_children_in_sessions_of_their_own_are_found_and_others_are_not(mark: str):
    ours, other = start(mark, CHILD), start(f"{mark}x", "input()")
    assert eventually(lambda: len(marked(mark)) == 2)
    assert other.pid not in marked(mark)
    sweep(mark)
    closed(ours)
    assert marked(mark) == []
    assert other.poll() is None
    other.kill()
    closed(other)


@pytest.mark.parametrize("grace", [0.3, 0.0])
def test_what_does_not_listen_is_killed(grace: float, mark: str):
    """Also where the time is over before anybody looked, as on a machine that is very busy."""
    deaf = start(mark, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); input()")
    assert deaf.stdout is not None
    assert deaf.stdout.readline() == b"1\n"  # from now on it does not listen
    assert eventually(lambda: marked(mark) == [deaf.pid])
    sweep(mark, grace)
    closed(deaf)
    assert deaf.returncode == -signal.SIGKILL


def test_they_end_when_the_keeper_is_let_go(mark: str):
    ours, kept = start(mark, CHILD), keeper(mark)
    assert eventually(lambda: len(marked(mark)) == 2)
    assert kept.poll() is None
    assert kept.stdin is not None
    kept.stdin.close()
    assert kept.wait(PATIENCE) == 0
    closed(ours)
    assert marked(mark) == []


def test_and_when_the_process_that_has_the_keeper_is_killed(mark: str):
    """The mark goes by a variable of another name: on its command line it would make the first process one of them."""
    code = f"""
import os, subprocess, sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "src" / "fedstrata" / "deploy")!r})
import processes
kept = processes.keeper(os.environ["TOLD"])
env = os.environ | {{processes.MARK: os.environ["TOLD"]}}
subprocess.Popen([sys.executable, "-c", {CHILD!r}], env=env, start_new_session=True, stdin=subprocess.PIPE)
input()
"""
    first = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=os.environ | {"TOLD": mark})
    assert eventually(lambda: len(marked(mark)) == 2)
    assert first.pid not in marked(mark)
    first.kill()
    closed(first)
    assert eventually(lambda: marked(mark) == [])


def test_a_marked_process_does_not_take_its_session_with_it(mark: str):
    """A command that we call is in the session of the person who called us."""
    env = os.environ | {MARK: mark}
    ours = subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE)
    assert eventually(lambda: ours.pid in marked(mark))
    assert marked(mark) == [ours.pid]
    ours.kill()
    closed(ours)


def test_not_even_where_the_first_of_the_session_has_gone(mark: str):
    """As in the background of a script that has ended: what is older there than what carries the mark is not ours."""
    code = f"""
import os, subprocess, sys
wait = [sys.executable, "-c", "import time; time.sleep(3600)"]
bystander = subprocess.Popen(wait, stdout=subprocess.DEVNULL)
ours = subprocess.Popen(wait, stdout=subprocess.DEVNULL, env=os.environ | {{{MARK!r}: {mark!r}}})
print(bystander.pid, ours.pid, flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, timeout=PATIENCE
    )
    bystander, ours = map(int, done.stdout.split())
    try:
        assert eventually(lambda: ours in marked(mark))
        assert marked(mark) == [ours]
    finally:
        end([bystander, ours], signal.SIGKILL)


def test_nodes_are_named_in_the_order_of_their_parts():
    names = named(12)
    assert list(names) == sorted(names)
    assert [c["partition-id"] for c in names.values()] == list(range(12))
    assert list(named(3)) == ["node-0", "node-1", "node-2"]
    with pytest.raises(SettingError, match="at least 1 node"):
        named(0)
