"""`fedstrata deploy check --server` against servers that answer as proxies do, good ones and bad ones."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedstrata.deploy import check_server as servers
from fedstrata.deploy.check_server import check_server
from fedstrata.deploy.folder import Deployment, init, renew
from fedstrata.deploy.local import free_port
from fedstrata.deploy.outside import Outside
from fedstrata.errors import SettingError
from fedstrata.experiment import Experiment

pytest.importorskip("cryptography")


class Fake(BaseHTTPRequestHandler):
    """nginx in front of a SuperLink, as far as a stranger sees them."""

    open: tuple[str, ...] = ()  # paths that are let through and should not be
    strangers = False  # whether they are let in

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith(self.open or "-"):
            self.say(415, '{"code":1002,"detail":"Unsupported Content-Type."}')
        elif self.path == "/v1/fleet/pull-messages":
            self.say(401, '{"code":1,"detail":"Invalid SuperNode authentication"}')
        elif self.path == "/v1/fleet/register-node":
            self.say(200, "") if self.strangers else self.say(412, '{"code":2001,"detail":"..."}')
        else:
            self.say(403, "<html>403 Forbidden</html>")

    def do_GET(self) -> None:
        self.say(200, "") if self.path in self.open else self.say(403, "<html>403 Forbidden</html>")

    def say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Those who hang up are no error."""
        del request, client_address


@contextmanager
def serving(folder: Path, port: int, **how: object) -> Iterator[None]:
    """With the certificate of a deployment."""
    server = Quiet(("127.0.0.1", port), type("Fake", (Fake,), how))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server" / "tls" / "server.crt", folder / "server" / "tls" / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "d"
    init(folder, Deployment("localhost", ("a",), free_port(), free_port()), Experiment.of({"method": "fedavg"}))
    return folder


@pytest.fixture
def url(folder: Path) -> str:
    return f"https://localhost:{Deployment.read(folder).port}"


def failing(folder: Path, url: str) -> dict[str, str]:
    return {c.what: c.found for c in check_server(folder, url) if c.fine is False}


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_server_that_shows_the_fleet_paths_alone_passes(folder: Path, url: str):
    with serving(folder, port_of(url)):
        assert failing(folder, url) == {}


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/v1/control/", "control and runtime paths"),
        ("/v1/runtime/", "control and runtime paths"),
        ("/v1/fleet/..", "control and runtime paths"),
        ("/health", "pages"),
        ("/openapi.json", "pages"),
    ],
)
def test_one_path_too_many_is_found(path: str, what: str, folder: Path, url: str):
    with serving(folder, port_of(url), open=(path,)):
        bad = failing(folder, url)
    assert list(bad) == [what]
    assert path in bad[what]


def test_a_server_that_takes_any_key_is_found(folder: Path, url: str):
    with serving(folder, port_of(url), strangers=True):
        assert list(failing(folder, url)) == ["unknown keys"]


def test_a_server_with_an_older_certificate_is_told_of(folder: Path, url: str):
    with serving(folder, port_of(url)):
        renew(folder)
        assert failing(folder, url) == {"TLS": "it shows an older certificate of ours"}


def test_so_is_one_of_somebody_else(folder: Path, url: str, tmp_path: Path):
    init(tmp_path / "other", Deployment("localhost", ("a",)), Experiment.of({"method": "fedavg"}))
    with serving(tmp_path / "other", port_of(url)):
        assert "its certificate is not ours" in failing(folder, url)["TLS"]


def test_and_one_that_is_not_there(folder: Path):
    assert "does not answer" in failing(folder, f"https://localhost:{free_port()}")["TLS"]


def test_a_superlink_that_can_be_reached_from_outside_is_found(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(servers, "_here", lambda _: False)
    port = Deployment.read(folder).link_port
    with serving(folder, port_of(url)), serving(folder, port):
        assert failing(folder, url) == {f"port {port} of the SuperLink": "it can be reached from outside"}


@pytest.mark.parametrize("url", ["http://h", "https://", "https://h:99999", "ftp://h"])
def test_what_is_no_url_is_said(url: str):
    with pytest.raises(SettingError, match="--server must be a URL"):
        Outside.of(url, None)
