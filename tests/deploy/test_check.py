"""`fedstrata deploy check` on files: every check can fail, and says what to do."""

import json
import shutil
from pathlib import Path

import pytest

from fedstrata.deploy import check, pki
from fedstrata.deploy.check import check_folder
from fedstrata.deploy.folder import Deployment, add, init, renew
from fedstrata.experiment import Experiment
from tests.cli.test_cli import fedstrata, last_json

pytest.importorskip("cryptography")
pytest.importorskip("flwr")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "d"
    init(folder, Deployment("fl.example.org", ("a", "b")), Experiment.of({"method": "fedavg"}))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "d"))


def failing(folder: Path) -> dict[str, tuple[str, str]]:
    return {c.what: (c.found, c.remedy) for c in check_folder(folder) if c.fine is False}


def test_a_new_deployment_passes(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert failing(folder) == {}
    assert fedstrata("deploy", "check", str(folder), "--json") == 0
    told = last_json(capsys)
    assert told["fine"]
    assert {c["what"] for c in told["checks"]} >= {"server certificate", "its chain", "key of a", "flwr", "torch"}


def test_so_does_one_that_was_added_to_and_renewed(folder: Path):
    add(folder, "c")
    renew(folder, 100)
    assert failing(folder) == {}


def test_what_fails_is_shown_with_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "nodes" / "a" / "node.key").chmod(0o644)
    assert fedstrata("deploy", "check", str(folder), "--json") == 2
    shown = capsys.readouterr().out
    assert "FAILS" in shown
    told = json.loads(shown.splitlines()[-1])
    assert not told["fine"]
    assert [(c["what"], c["remedy"][:9]) for c in told["checks"] if c["fine"] is False] == [("key of a", "chmod 600")]


def test_keys_that_are_elsewhere_are_no_failure(folder: Path):
    (folder / "pki" / "ca.key").unlink()
    (folder / "nodes" / "a" / "node.key").unlink()
    found = {c.what: c.fine for c in check_folder(folder)}
    assert (found["authority's key"], found["key of a"], found["key of b"]) == (None, None, True)
    assert failing(folder) == {}


def spoil_dates(folder: Path) -> None:
    renew(folder, days=3)


def spoil_names(folder: Path) -> None:
    pki.make_server(folder / "pki", folder / "server" / "tls", ["other.example.org"])


def spoil_chain(folder: Path) -> None:
    pki.make_authority(folder / "other")
    pki.make_server(folder / "other", folder / "server" / "tls", Deployment.read(folder).hosts)


def spoil_copy(folder: Path) -> None:
    pki.make_authority(folder / "other")
    shutil.copy(folder / "other" / "ca.crt", folder / "nodes" / "a")


def spoil_server_key(folder: Path) -> None:
    pki.write_private(folder / "server" / "tls" / "server.key", (folder / "pki" / "ca.key").read_bytes())


def spoil_pair(folder: Path) -> None:
    pki.make_node_key(folder / "nodes" / "b" / "node.key", folder / "other.pub")


def spoil_kind(folder: Path) -> None:
    ed25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPX+ZLqjlSBbYFVDnBpNMNKPRT1S2bHBTHuBw4cBHSe"
    (folder / "server" / "keys" / "a.pub").write_text(ed25519)


def spoil_difference(folder: Path) -> None:
    shutil.copy(folder / "server" / "keys" / "a.pub", folder / "server" / "keys" / "b.pub")
    shutil.copy(folder / "nodes" / "a" / "node.key", folder / "nodes" / "b" / "node.key")


def spoil_experiment(folder: Path) -> None:
    (folder / "app" / "fedstrata_app" / "experiment.toml").write_text("rounds = 0")


def spoil_config(folder: Path) -> None:
    path = folder / "app" / "pyproject.toml"
    path.write_text(path.read_text() + "dedline = 3\n")


def spoil_version(folder: Path) -> None:
    path = folder / "deployment.toml"
    path.write_text(path.read_text().replace('fedstrata = "', 'fedstrata = "99.'))


@pytest.mark.parametrize(
    ("spoil", "what", "found"),
    [
        (spoil_dates, "server certificate", "in 3 days"),
        (spoil_names, "its names", "it is for other.example.org"),
        (spoil_chain, "its chain", "has not signed it"),
        (spoil_copy, "copies of the authority", "nodes/a/ca.crt differ"),
        (spoil_server_key, "server's key", "not of this public half"),
        (spoil_pair, "key of b", "not of this public half"),
        (spoil_kind, "key of a", "not an EC key on P-384"),
        (spoil_difference, "keys differ", "1 keys for 2 nodes"),
        (spoil_experiment, "app", "rounds must be at least 1"),
        (spoil_config, "app", "unknown keys: dedline"),
        (spoil_version, "fedstrata", "; 99."),
    ],
)
def test_one_thing_spoilt_is_one_check_failed(spoil, what: str, found: str, folder: Path):
    spoil(folder)
    bad = failing(folder)
    assert list(bad) == [what]
    assert found in bad[what][0]
    assert bad[what][1]


@pytest.mark.parametrize(
    ("version", "fine"), [("1.40.9", False), ("1.41.0", True), ("1.42.1", True), ("1.43.0", False)]
)
def test_the_version_of_flower_is_looked_at(version: str, fine: int, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check, "version", lambda name: version if name == "flwr" else "2.9")
    assert ("flwr" not in failing(folder)) == bool(fine)


def test_what_is_missing_is_a_failure_and_no_crash(folder: Path):
    shutil.rmtree(folder / "server" / "tls")
    assert {"server certificate", "its names", "its chain", "server's key"} <= set(failing(folder))
