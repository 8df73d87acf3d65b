"""What a running server shows the world: the fleet paths, to nodes with a registered key, and nothing else."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from fedstrata.deploy import pki
from fedstrata.deploy.check import Check
from fedstrata.deploy.folder import Deployment
from fedstrata.deploy.outside import FLEET, HIDDEN, PAGES, PROTOBUF, Answer, Outside

PROXY = "use the nginx.conf of server/ as it is, and let nobody else listen to the outside"


def check_server(folder: Path, url: str) -> list[Check]:
    """From where this runs; run it outside the server to see what the world sees."""
    deployment = Deployment.read(folder)
    outside = Outside.of(url, folder / "pki" / "ca.crt")
    first = _certificate(folder, outside)
    if first.fine is False:
        return [first]
    return [
        first,
        _fleet(outside),
        _strangers(outside),
        *_hidden(outside),
        _plain(outside),
        _behind(outside, deployment.link_port),
    ]


def _certificate(folder: Path, outside: Outside) -> Check:
    what = "TLS"
    try:
        shown = outside.certificate()
    except ssl.SSLCertVerificationError as e:
        remedy = "copy server/tls to the server and restart its proxy; check --host"
        return Check(what, False, f"its certificate is not ours: {e.verify_message}", remedy)
    except OSError as e:
        started = f"is the proxy running, and port {outside.port} open?"
        return Check(what, False, f"{outside.host}:{outside.port} does not answer ({e})", started)
    ours = ssl.PEM_cert_to_DER_cert((folder / "server" / "tls" / "server.crt").read_text())
    if shown != ours:
        return Check(
            what, False, "it shows an older certificate of ours", "copy server/tls there, and reload the proxy"
        )
    return Check(what, True, "it shows the certificate of server/tls")


def _fleet(outside: Outside) -> Check:
    """A request without a signature must come through to the SuperLink, and be refused there."""
    answer = _asked(outside, FLEET, PROTOBUF)
    if answer is not None and answer.status == 401:
        return Check("fleet paths", True, "they answer, and ask for a signature")
    return Check("fleet paths", False, f"{FLEET} gives {_said(answer)}", "is the SuperLink running behind the proxy?")


def _strangers(outside: Outside) -> Check:
    """A signature of a key that is not registered must not do; where it does, the server has a node more by this."""
    answer = None
    with suppress(OSError):
        answer = outside.introduce(pki.new_key())
    fine = answer is not None and 400 <= answer.status < 500 and answer.code is not None
    remedy = "start the SuperLink with --enable-supernode-auth, as server/superlink.sh does"
    return Check(
        "unknown keys", fine, "they are refused" if fine else f"one gets {_said(answer)}", "" if fine else remedy
    )


def _hidden(outside: Outside) -> Iterator[Check]:
    for kind, paths in (("control and runtime paths", HIDDEN), ("pages", PAGES)):
        method = "GET" if paths is PAGES else "POST"
        open_ = [(p, a) for p in paths if (a := _asked(outside, p, method=method)) is not None and not a.refused]
        found = f"{open_[0][0]} gives {_said(open_[0][1])}" if open_ else f"{len(paths)} were tried, all are refused"
        yield Check(kind, not open_, found, PROXY if open_ else "")


def _plain(outside: Outside) -> Check:
    answer = _asked(replace(outside, plain=True), FLEET, PROTOBUF)
    through = answer is not None and answer.code is not None
    return Check(
        "plain HTTP", not through, f"it gives {_said(answer)}" if through else "it is refused", PROXY * through
    )


def _behind(outside: Outside, port: int) -> Check:
    """The SuperLink's own port must not be reachable but on its own machine."""
    what = f"port {port} of the SuperLink"
    if _here(outside.host):
        return Check(what, None, "this is the server; look from elsewhere")
    with suppress(OSError), socket.create_connection((outside.host, port), 5):
        return Check(what, False, "it can be reached from outside", PROXY)
    return Check(what, True, "it cannot be reached")


def _here(host: str) -> bool:
    with suppress(OSError, ValueError):
        return all(ip_address(found[4][0]).is_loopback for found in socket.getaddrinfo(host, None))
    return False


def _asked(outside: Outside, path: str, kind: str = "text/plain", method: str = "POST") -> Answer | None:
    with suppress(OSError):
        return outside.ask(path, kind, method=method)
    return None


def _said(answer: Answer | None) -> str:
    return "no answer" if answer is None else f"{answer.status} {' '.join(answer.text[:80].split())}"
