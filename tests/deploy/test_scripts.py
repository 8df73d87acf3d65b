"""The scripts of a deployment, with programs in Flower's place that say what they are told to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import fedstrata

pytest.importorskip("cryptography")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell is needed")

AWAY = '{"success": false, "error-message": "Connection to the SuperLink is unavailable."}'
FLWR = """#!/bin/sh
echo "$*" >> "$STATE/asked"
[ $(wc -l < "$STATE/asked") -gt {later} ] && echo '{{"success": true, "node-id": "7"}}' || echo '{answer}'
"""


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert fedstrata("deploy", "init", "d", "--nodes", "north,south", "--host", "localhost", "--port", "8443") == 0
    return tmp_path


def register(folder: Path, later: int, answer: str) -> "subprocess.CompletedProcess[str]":
    """Where `flwr` says yes after so many other answers, and nobody sleeps."""
    programs = {"flwr": FLWR.format(later=later, answer=answer), "sleep": "#!/bin/sh\n"}
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    env = os.environ | {"BIN": str(folder / "bin"), "STATE": str(folder / "state")}
    return subprocess.run([folder / "d" / "server" / "register.sh"], env=env, capture_output=True, text=True)


def asked(folder: Path) -> int:
    return len((folder / "state" / "asked").read_text().splitlines())


def test_register_waits_for_a_superlink_that_was_started_just_now(deployment: Path):
    done = register(deployment, later=3, answer=AWAY)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["north is registered", "south is registered"]
    assert asked(deployment) == 3 + 2


def test_register_gives_up_on_one_that_is_not_there(deployment: Path):
    done = register(deployment, later=1000, answer=AWAY)
    assert done.returncode == 1
    assert "is superlink.sh running?" in done.stderr
    assert "north was not registered" in done.stderr
    assert asked(deployment) < 50


def test_register_does_not_ask_again_where_the_answer_is_no(deployment: Path):
    done = register(deployment, later=1, answer='{"success": false, "error-message": "Public key already in use"}')
    assert done.returncode == 1
    assert "already in use" in done.stderr
    assert asked(deployment) == 1
