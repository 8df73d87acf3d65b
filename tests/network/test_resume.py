"""A server app that was killed, and then the SuperLink itself: the run goes on from its checkpoint, bit for bit."""

import os
import signal
from pathlib import Path

from fedstrata.deploy.local import Federation
from tests.flower.federation import equal, lines, model
from tests.network.federation import app_of, completed, files, only_networked, simulated, small, until_round

pytestmark = only_networked


def server_apps(fed: Federation) -> list[int]:
    """The processes that run a server app."""
    found = []
    for pid in fed.left():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"flwr-serverapp" in command:
            found.append(pid)
    return found


def test_what_is_killed_goes_on_bit_for_bit(tmp_path: Path):
    exp = small("scaffold", rounds=4)
    app, settings = app_of(tmp_path / "app", exp), {"out": str(tmp_path / "run")}
    with Federation(tmp_path / "here", files(tmp_path)) as fed:
        fed.submit(app, settings)
        until_round(tmp_path / "run", 1)
        assert server_apps(fed)
        for pid in server_apps(fed):
            os.kill(pid, signal.SIGKILL)
        fed.submit(app, settings | {"resume": True})
        until_round(tmp_path / "run", 2)
        fed.kill("superlink")
        for pid in server_apps(fed):
            os.kill(pid, signal.SIGKILL)  # as they would with their machine
        done = len(lines(tmp_path / "run"))
        assert done < 4
        fed.start_superlink()
        fed.wait_online()
        completed(fed, fed.submit(app, settings | {"resume": True}), tmp_path / "run")
    assert not fed.left()
    assert [r["round"] for r in lines(tmp_path / "run")] == [0, 1, 2, 3]
    assert equal(model(tmp_path / "run"), simulated(exp))
