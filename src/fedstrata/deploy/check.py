"""Whether a deployment is as it should be: its files, what is installed here, and what its server shows the world."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from stat import S_IMODE
from typing import Any

from fedstrata.deploy import pki
from fedstrata.deploy.app import PACKAGE, RUN
from fedstrata.deploy.folder import Deployment
from fedstrata.errors import FedstrataError
from fedstrata.experiment import Experiment, read_toml
from fedstrata.version import __version__

SOON = 14
"""A certificate that ends in fewer days is to be renewed now."""

FLOWER = (1, 41), (1, 43)
"""The versions of Flower that will do: from, and below."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: fine, or not, or (None) not to be seen from here; and what to do about it."""

    what: str
    fine: bool | None
    found: str
    remedy: str = ""


def check_folder(folder: Path) -> list[Check]:
    """Certificates, keys, the app and what is installed."""
    deployment = Deployment.read(folder)
    return [
        *_certificates(folder, deployment),
        *_keys(folder, deployment),
        _tried("app", lambda: _app(folder), "mend the file, or make the deployment anew"),
        *_versions(folder),
    ]


def _certificates(folder: Path, deployment: Deployment) -> Iterator[Check]:
    tls = folder / "server" / "tls"
    yield _tried(
        "authority", lambda: _dates(folder / "pki" / "ca.crt"), "make the deployment anew: nodes need the new one"
    )
    yield _tried("server certificate", lambda: _dates(tls / "server.crt"), f"run fedstrata deploy renew {folder}")

    def names() -> tuple[bool, str]:
        found = pki.hosts_of(pki.read_certificate(tls / "server.crt"))
        return set(deployment.hosts) <= set(found), f"it is for {', '.join(found) or 'nobody'}"

    def chain() -> tuple[bool, str]:
        above = pki.read_certificate(folder / "pki" / "ca.crt")
        fine = pki.signed_by(pki.read_certificate(tls / "server.crt"), above)
        return fine, "the authority has signed it" if fine else "the authority has not signed it"

    def copies() -> tuple[bool, str]:
        ours = (folder / "pki" / "ca.crt").read_bytes()
        there = [tls / "ca.crt", *(folder / "nodes" / n / "ca.crt" for n in deployment.nodes)]
        others = [str(p.relative_to(folder)) for p in there if p.exists() and p.read_bytes() != ours]
        return not others, f"{', '.join(others)} differ" if others else "server and nodes have the same"

    yield _tried("its names", names, f"run fedstrata deploy renew {folder}")
    yield _tried("its chain", chain, f"run fedstrata deploy renew {folder}")
    yield _tried("copies of the authority", copies, "copy pki/ca.crt over them")


def _dates(path: Path) -> tuple[bool, str]:
    certificate = pki.read_certificate(path)
    if certificate.not_valid_before_utc > datetime.now(UTC):
        return False, f"it begins only on {certificate.not_valid_before_utc:%Y-%m-%d}; is the clock right?"
    left = pki.days_left(certificate)
    ends = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    return left >= SOON, f"it ends on {ends}, in {left:.0f} days" if left >= 0 else f"it ended on {ends}"


def _keys(folder: Path, deployment: Deployment) -> Iterator[Check]:
    tls = folder / "server" / "tls"

    def server() -> tuple[bool, str]:
        key, certificate = pki.read_key(tls / "server.key"), pki.read_certificate(tls / "server.crt")
        return _private(tls / "server.key", key, certificate.public_key())

    def authority() -> tuple[bool | None, str]:
        path = folder / "pki" / "ca.key"
        if not path.exists():
            return None, "it is kept elsewhere"
        return _private(path, pki.read_key(path), pki.read_certificate(folder / "pki" / "ca.crt").public_key())

    yield _tried("authority's key", authority, "chmod 600 pki/ca.key; if it is another one, bring back the right one")
    yield _tried("server's key", server, f"chmod 600 server/tls/server.key, or run fedstrata deploy renew {folder}")
    for name in deployment.nodes:
        yield _tried(
            f"key of {name}", lambda n=name: _node_key(folder, n), "chmod 600, or a new node by fedstrata deploy add"
        )
    yield _tried("keys differ", lambda: _all_differ(folder, deployment), "one key is one node: add it anew")


def _node_key(folder: Path, name: str) -> tuple[bool | None, str]:
    public = pki.read_public(folder / "server" / "keys" / f"{name}.pub")
    if not pki.is_node_key(public):
        return False, "the public key is not an EC key on P-384, which Flower needs"
    path = folder / "nodes" / name / "node.key"
    if not path.exists():
        return None, "the private key is not here: the node has it"
    return _private(path, pki.read_key(path), public)


def _all_differ(folder: Path, deployment: Deployment) -> tuple[bool, str]:
    said = [(folder / "server" / "keys" / f"{n}.pub").read_text().split()[1] for n in deployment.nodes]
    return len(set(said)) == len(said), f"{len(set(said))} keys for {len(said)} nodes"


def _private(path: Path, key: Any, public: Any) -> tuple[bool, str]:
    mode = S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return False, f"others can read {path.name} (mode {mode:o})"
    if not pki.is_node_key(key):
        return False, f"{path.name} is not an EC key on P-384"
    fits = pki.same_pair(key, public)
    return fits, "EC on P-384, private, and both halves fit" if fits else f"{path.name} is not of this public half"


def _app(folder: Path) -> tuple[bool, str]:
    experiment = Experiment.of(read_toml(folder / "app" / PACKAGE / "experiment.toml"))
    config = read_toml(folder / "app" / "pyproject.toml")["tool"]["flwr"]["app"]["config"]
    if unknown := sorted(config.keys() - RUN.keys()):
        return False, f"app/pyproject.toml has unknown keys: {', '.join(unknown)}"
    return True, f"an experiment of {experiment.rounds} round{'s' * (experiment.rounds != 1)}"


def _versions(folder: Path) -> Iterator[Check]:
    install = "run pip install 'fedstrata[flower]'"
    flower, low, high = _version("flwr"), *(".".join(map(str, v)) for v in FLOWER)
    fine = flower is not None and FLOWER[0] <= tuple(int(n) for n in flower.split(".")[:2]) < FLOWER[1]
    yield Check("flwr", fine, f"{flower or 'not here'}; from {low}, below {high}", install)
    yield Check("torch", (torch := _version("torch")) is not None, torch or "not here", install)
    said = read_toml(folder / "deployment.toml").get("fedstrata")
    same = f"install fedstrata {said} here and on all machines, or bring all to {__version__}"
    yield Check("fedstrata", said == __version__, f"{__version__} here; {said} made the deployment", same)


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _tried(what: str, look: Callable[[], tuple[bool | None, str]], remedy: str) -> Check:
    """A look that may find things missing or broken."""
    try:
        fine, found = look()
    except (FedstrataError, OSError, LookupError, ValueError) as e:
        fine, found = False, str(e)
    return Check(what, fine, found, remedy if fine is False else "")
