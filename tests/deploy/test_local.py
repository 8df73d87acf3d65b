"""A federation of this machine, without its processes: ports, and how long it waits."""

import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedstrata.deploy.local import BLOCK, Federation, free_port
from fedstrata.errors import FedstrataError
from tests.cli.test_cli import fedstrata
from tests.data.test_own import write_csv

HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Which ports the kernel gives to connections."""


def test_a_port_is_given_once_and_none_that_a_connection_may_have_by_then():
    ports = [free_port() for _ in range(BLOCK // 2)]
    assert len({*ports}) == len(ports)
    if sys.platform == "linux":
        low, high = map(int, HANDED_OUT.read_text().split())
        assert not any(low <= p <= high for p in ports)


def test_as_many_nodes_as_the_file_has_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("flwr")
    write_csv(tmp_path / "mine.csv", clients=4)
    assert fedstrata("deploy", "local", "--nodes", "3", "--data", str(tmp_path / "mine.csv")) == 2
    said = "this data has 4 clients, each of which is a node; --nodes says 3, leave it out"
    assert capsys.readouterr().err.strip().endswith(said)


def late(fed: Federation, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a SuperLink that answers after so many looks, of 50 s each or more."""
    clock, asked = count(0, 50), count(1)
    time = SimpleNamespace(monotonic=clock.__next__, sleep=lambda _: None)
    monkeypatch.setattr("fedstrata.deploy.daemons.time", time)
    monkeypatch.setattr(fed, "_spawn", lambda *_: None)
    monkeypatch.setattr(fed, "healthy", lambda: next(asked) >= looks)
    fed.start_superlink()


def test_a_busy_machine_may_take_minutes_to_start_a_program_but_not_for_ever(tmp_path: Path, monkeypatch):
    late(Federation(tmp_path, 1), 4, monkeypatch)
    with pytest.raises(FedstrataError, match="the SuperLink does not answer within 600 s"):
        late(Federation(tmp_path, 1), 1000, monkeypatch)
