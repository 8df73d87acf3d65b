"""Who is not registered, does not know the authority, or comes where only the server's own machine may, is refused.

Beside each refusal stands the same thing done rightly, which is accepted.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedstrata import toml
from fedstrata.deploy import pki
from fedstrata.deploy.local import HOST, TAKEN, Federation, free_port, program
from fedstrata.deploy.outside import FLEET, HIDDEN, PAGES, PROTOBUF, Outside
from fedstrata.errors import FedstrataError
from tests.network.federation import only_networked
from tests.network.proxied import proxied
from tests.patience import eventually

pytestmark = only_networked


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, Outside]]:
    with proxied(tmp_path_factory.mktemp("intruder")) as both:
        yield both


@pytest.fixture
def fed(both: tuple[Federation, Outside]) -> Federation:
    return both[0]


@pytest.fixture
def outside(both: tuple[Federation, Outside]) -> Outside:
    return both[1]


@pytest.fixture
def inside(fed: Federation) -> Outside:
    """The SuperLink itself, without the proxy: what refuses here is not the proxy."""
    return Outside("localhost", fed.port, fed.keys / "ca.crt")


def let_in(fed: Federation, folder: Path, *how: str) -> bool:
    """Whether a SuperNode with these options is let in, and then stopped; else it must end by itself."""
    log = folder / f"{free_port()}.log"
    call = [program("flower-supernode"), "--host", HOST, "--port", str(free_port()), *how]
    with log.open("wb") as f:
        node = subprocess.Popen(call, env=fed.environment("intruder"), stdout=f, stderr=f, start_new_session=True)
    try:
        assert eventually(lambda: node.poll() is not None or TAKEN in log.read_bytes()), log.read_text()
        return TAKEN in log.read_bytes()
    finally:
        node.kill()
        node.wait()


def test_a_node_needs_a_registered_key_the_right_authority_and_tls(fed: Federation, tmp_path: Path):
    key = fed.make_key("newcomer")
    pki.make_authority(tmp_path)
    trust, server = ["--root-certificates", str(fed.keys / "ca.crt")], ["--superlink", str(fed.through)]
    mine = ["--auth-supernode-private-key", str(key)]
    assert not let_in(fed, tmp_path, *server, *trust, *mine), "a key that is not registered"
    fed.register("newcomer")
    assert not let_in(fed, tmp_path, *server, *trust), "no key"
    assert not let_in(fed, tmp_path, *server, "--root-certificates", str(tmp_path / "ca.crt"), *mine), (
        "a wrong authority"
    )
    assert not let_in(fed, tmp_path, *server, "--insecure"), "plain HTTP"
    assert let_in(fed, tmp_path, *server, *trust, *mine), "and all of it right"


def test_a_signature_of_an_unknown_key_does_not_do(fed: Federation, outside: Outside, inside: Outside):
    known = pki.read_key(fed.keys / "node-0")
    for door in (outside, inside):
        assert door.introduce(pki.new_key()).status == 412  # registering oneself
        refused = door.introduce(pki.new_key(), "/v1/fleet/activate-node")
        accepted = door.introduce(known, "/v1/fleet/activate-node")
        assert refused.status == 412
        assert accepted.text != refused.text  # it is known, and online already
        assert door.ask(FLEET, PROTOBUF).status == 401  # no signature


def test_another_authority_does_not_vouch_for_the_server(outside: Outside, tmp_path: Path):
    pki.make_authority(tmp_path)
    assert outside.ask(FLEET, PROTOBUF).status == 401
    with pytest.raises(OSError, match="certificate verify failed"):
        replace(outside, authority=tmp_path / "ca.crt").ask(FLEET, PROTOBUF)


def test_plain_http_is_refused(outside: Outside, inside: Outside):
    answer = replace(outside, plain=True).ask(FLEET, PROTOBUF)
    assert (answer.status, answer.code) == (400, None)
    with pytest.raises(OSError):  # noqa: PT011  the SuperLink hangs up
        replace(inside, plain=True).ask(FLEET, PROTOBUF)


@pytest.mark.parametrize("path", HIDDEN)
def test_control_and_runtime_paths_are_not_reached_through_the_proxy(path: str, outside: Outside):
    assert outside.ask(path).refused
    assert outside.ask(path, PROTOBUF).refused


@pytest.mark.parametrize("path", [p for p in HIDDEN if p.startswith(("/v1/control", "/v1/runtime"))])
def test_and_are_what_the_superlink_itself_would_answer(path: str, inside: Outside):
    answer = inside.ask(path)
    assert not answer.refused
    assert answer.status == 415


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_not_shown_either(path: str, outside: Outside, inside: Outside):
    assert outside.ask(path, method="GET").refused
    assert inside.ask(path, method="GET").status == 200


def test_nobody_registers_a_key_or_lists_nodes_from_outside(fed: Federation, outside: Outside):
    there = {"address": f"localhost:{outside.port}", "root-certificates": str(fed.keys / "ca.crt")}
    config = fed.home("cli") / "config.toml"
    before = config.read_text()
    config.write_text(before + "\n" + toml.dumps({"superlink": {"there": there}}))
    fed.make_key("intruder")
    key = str(fed.keys / "intruder.pub")
    for args in (("supernode", "register", key, "there"), ("supernode", "list", "there"), ("list", "there")):
        with pytest.raises(FedstrataError, match="failed"):
            fed.flwr(*args)
    assert fed.flwr("supernode", "list", "here")["nodes"]
    assert fed.flwr("supernode", "register", key, "here")["node-id"]
