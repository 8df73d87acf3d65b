"""Certificates and keys, as OpenSSL and Flower take them."""

import ssl
import sys
from pathlib import Path
from stat import S_IMODE

import pytest

from fedstrata.deploy import pki
from fedstrata.errors import DataError, SettingError

pytest.importorskip("cryptography")


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    pki.make_authority(tmp_path)
    pki.make_server(tmp_path, tmp_path, ["fl.example.org", "10.1.2.3"], days=30)
    return tmp_path


def shake_hands(server: Path, trusted: Path, name: str) -> None:
    """A TLS handshake in memory; raises ssl.SSLError where the client does not take the server's certificate."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(server / "server.crt", server / "server.key")
    ours = ssl.create_default_context(cafile=str(trusted))
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    ends = [theirs.wrap_bio(pipes[0], pipes[1], server_side=True), ours.wrap_bio(pipes[1], pipes[0], False, name)]
    for _ in range(4):
        for end in reversed(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize("name", ["fl.example.org", "10.1.2.3"])
def test_the_server_is_known_by_each_of_its_names(authority: Path, name: str):
    shake_hands(authority, authority / "ca.crt", name)
    assert pki.hosts_of(pki.read_certificate(authority / "server.crt")) == ["fl.example.org", "10.1.2.3"]


def test_and_by_no_other(authority: Path):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(authority, authority / "ca.crt", "other.example.org")


def test_another_authority_does_not_vouch_for_it(authority: Path, tmp_path: Path):
    pki.make_authority(tmp_path / "other")
    other = tmp_path / "other" / "ca.crt"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(authority, other, "fl.example.org")
    server = pki.read_certificate(authority / "server.crt")
    assert pki.signed_by(server, pki.read_certificate(authority / "ca.crt"))
    assert not pki.signed_by(server, pki.read_certificate(other))


def test_renewing_changes_certificate_and_key_and_nodes_need_nothing(authority: Path):
    before = {n: (authority / n).read_bytes() for n in ("ca.crt", "server.crt", "server.key")}
    pki.make_server(authority, authority, ["fl.example.org"], days=90)
    after = {n: (authority / n).read_bytes() for n in before}
    assert [n for n in before if before[n] != after[n]] == ["server.crt", "server.key"]
    assert round(pki.days_left(pki.read_certificate(authority / "server.crt"))) == 90
    shake_hands(authority, authority / "ca.crt", "fl.example.org")


def test_nobody_else_reads_private_keys(authority: Path):
    pki.make_node_key(authority / "node", authority / "node.pub")
    for name in ("ca.key", "server.key", "node"):
        assert S_IMODE((authority / name).stat().st_mode) == 0o600
    assert S_IMODE((authority / "node.pub").stat().st_mode) & 0o044


def test_a_nodes_key_is_one_that_flower_takes(tmp_path: Path):
    loader = pytest.importorskip("flwr.supercore.primitives.asymmetric")
    pki.make_node_key(tmp_path / "a", tmp_path / "a.pub")
    pki.make_node_key(tmp_path / "b", tmp_path / "b.pub")
    private, public = pki.read_key(tmp_path / "a"), pki.read_public(tmp_path / "a.pub")
    assert pki.is_node_key(private)
    assert pki.is_node_key(public)
    assert pki.same_pair(private, public)
    assert not pki.same_pair(private, pki.read_public(tmp_path / "b.pub"))
    assert loader.verify_signature(public, b"now", loader.sign_message(private, b"now"))
    assert (tmp_path / "a.pub").read_text().startswith("ecdsa-sha2-nistp384 ")


def test_a_server_does_not_outlive_its_authority(tmp_path: Path):
    pki.make_authority(tmp_path, days=10)
    with pytest.raises(SettingError, match="before 11 days are over"):
        pki.make_server(tmp_path, tmp_path, ["localhost"], days=11)
    pki.make_server(tmp_path, tmp_path, ["localhost"], days=9)


def test_without_the_authoritys_key_nothing_is_renewed(authority: Path):
    (authority / "ca.key").unlink()
    with pytest.raises(DataError, match="bring it back from where it is kept"):
        pki.make_server(authority, authority, ["localhost"])


def test_what_is_no_key_is_said(tmp_path: Path):
    (tmp_path / "x").write_text("nothing")
    for read in (pki.read_key, pki.read_public, pki.read_certificate):
        with pytest.raises(DataError, match="x cannot be read as a"):
            read(tmp_path / "x")


def test_without_cryptography_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SettingError, match=r"pip install 'fedstrata\[flower\]'"):
        pki.make_authority(tmp_path)
