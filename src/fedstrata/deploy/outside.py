"""What somebody outside gets from a server: the questions of a stranger.

Requests to paths that must not be reachable have a content type that a SuperLink refuses before it looks at them, so
that a server which lets them through is found out without being touched.
"""

import json
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedstrata.errors import SettingError

SECONDS = 10.0
PROTOBUF = "application/protobuf"

FLEET = "/v1/fleet/pull-messages"
HIDDEN = [
    "/v1/control/start-run", "/v1/control/register-node", "/v1/control/list-nodes", "/v1/runtime/acquire-task",
    "/v1/runtime/push-messages", "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/..%2fcontrol/start-run", "//v1/control/start-run", "/v1/fleet/%2e%2e%2fruntime/acquire-task",
]  # fmt: skip
"""Paths that nobody outside may reach, also in disguise."""

PAGES = ["/health", "/docs", "/openapi.json"]
"""Pages of the SuperLink that tell what it is."""


@dataclass(frozen=True)
class Answer:
    """To a request."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def code(self) -> int | None:
        """The number that a SuperLink gives an error of its own; None where somebody else answered."""
        try:
            said: Any = json.loads(self.text)
        except ValueError:
            return None
        return said.get("code") if isinstance(said, dict) else None

    @property
    def refused(self) -> bool:
        """Whether somebody in front of the SuperLink said no."""
        return self.status in (401, 403, 404, 405) and self.code is None and not self.text.startswith("{")


@dataclass(frozen=True)
class Outside:
    """A stranger who knows where a server is, and perhaps the certificate of its authority."""

    host: str
    port: int
    authority: Path | None = None
    plain: bool = False  # without TLS

    @classmethod
    def of(cls, url: str, authority: Path | None) -> "Outside":
        """From a URL such as https://fl.example.org:8443."""
        parts = urlsplit(url if "//" in url else f"https://{url}")
        try:
            port = parts.port or 443
        except ValueError:
            port = 0
        if parts.scheme != "https" or not parts.hostname or not port:
            raise SettingError(f"--server must be a URL, e.g. https://fl.example.org; got {url!r}")
        return cls(parts.hostname, port, authority)

    def connection(self) -> HTTPConnection:
        """One that knows the authority and nobody else."""
        if self.plain:
            return HTTPConnection(self.host, self.port, timeout=SECONDS)
        trust = ssl.create_default_context(cafile=str(self.authority) if self.authority else None)
        return HTTPSConnection(self.host, self.port, timeout=SECONDS, context=trust)

    def certificate(self) -> bytes:
        """The certificate that the server shows, after it was verified; an OSError where it was not."""
        trust = ssl.create_default_context(cafile=str(self.authority) if self.authority else None)
        with (
            socket.create_connection((self.host, self.port), SECONDS) as s,
            trust.wrap_socket(s, server_hostname=self.host) as talk,
        ):
            return talk.getpeercert(binary_form=True) or b""

    def ask(
        self, path: str, kind: str = "text/plain", body: bytes = b"", method: str = "POST", **headers: str
    ) -> Answer:
        """Send a path as it is written; an OSError where nobody answers."""
        link = self.connection()
        try:
            link.putrequest(method, path)
            said = {"Content-Type": kind, "Content-Length": str(len(body))}
            for name, value in (said | {n.replace("_", "-"): v for n, v in headers.items()}).items():
                link.putheader(name, value)
            link.endheaders(body)
            found = link.getresponse()
            return Answer(found.status, found.read(100_000).decode(errors="replace"), dict(found.getheaders()))
        except HTTPException as e:
            raise OSError(f"no answer in HTTP: {e!r}") from None
        finally:
            link.close()

    def introduce(self, private: Any, path: str = "/v1/fleet/register-node") -> Answer:
        """Sign a request as a node with this key would, to be let in or activated."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        now = datetime.now(UTC).isoformat()
        signed = {"flwr_timestamp": now, "flwr_public_key": b64encode(key).decode()}
        signed["flwr_signature"] = b64encode(private.sign(now.encode(), ECDSA(SHA256()))).decode()
        size = len(key)
        body = b"\x0a" + bytes([size & 0x7F | 0x80, size >> 7] if size > 127 else [size]) + key  # field 1, bytes
        return self.ask(path, PROTOBUF, body, **signed)
