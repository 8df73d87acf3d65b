"""A deployment as a folder: written once, nodes added, the certificate renewed."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

from fedstrata import toml
from fedstrata.data import is_own
from fedstrata.deploy import pki
from fedstrata.deploy.app import add_client, write_app
from fedstrata.deploy.templates import filled
from fedstrata.errors import DataError, check
from fedstrata.experiment import Experiment, read_toml
from fedstrata.files import make_folder, write
from fedstrata.version import __version__

FILE = "deployment.toml"
"""What a deployment is, for those who change or check it later."""

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
RESERVED = {"superlink", "server", "proxy"}


@final
@dataclass(frozen=True)
class Deployment:
    """Where the server is, and who the nodes are."""

    host: str  # as nodes call it
    nodes: tuple[str, ...]
    port: int = 443  # of the proxy
    link_port: int = 8000  # of the SuperLink, on the server's 127.0.0.1
    prefix: str = "/opt/fedstrata"  # where things are installed, on the server and on nodes
    classes: str = ""  # words for labels in the order of their numbers, with commas between; for the nodes

    def __post_init__(self) -> None:
        check(
            bool(HOST.fullmatch(self.host)),
            f"--host must be a name or an address, e.g. fl.example.org; got {self.host!r}",
        )
        for port in (self.port, self.link_port):
            check(1 <= port <= 65535, f"a port is a number from 1 to 65535; got {port}")
        check(self.port != self.link_port, f"the proxy and the SuperLink cannot both have port {self.port}")
        check(
            bool(re.fullmatch(r"/[\w./-]*", self.prefix)), f"--prefix must be a plain path from /; got {self.prefix!r}"
        )
        check(len(self.nodes) > 0, "a deployment has at least one node, e.g. --nodes hospital-a,hospital-b")
        for name in self.nodes:
            fine = bool(NAME.fullmatch(name)) and name not in RESERVED
            check(fine, f"a node's name has small letters, digits and hyphens, e.g. hospital-a; got {name!r}")
            check(self.nodes.count(name) == 1, f"there are two nodes called {name}; every node has a name of its own")

    @classmethod
    def read(cls, folder: Path) -> "Deployment":
        """That of a folder."""
        if not (folder / FILE).exists():
            raise DataError(
                f"{folder} is not a deployment: it has no {FILE}; `fedstrata deploy init {folder}` makes one"
            )
        said = read_toml(folder / FILE)
        try:
            known: dict[str, Any] = {f.name: said[f.name] for f in fields(cls) if f.name in said}
            known["nodes"] = tuple(known["nodes"])
            return cls(**known)
        except (KeyError, TypeError) as e:
            raise DataError(f"{folder / FILE} is damaged: {e!r}") from None

    def write(self, folder: Path) -> None:
        """Into its folder."""
        said = {f.name: getattr(self, f.name) for f in fields(self)} | {"fedstrata": __version__}
        write(
            folder / FILE,
            "# What this deployment is; fedstrata deploy add, renew and check read it.\n" + toml.dumps(said),
        )

    @property
    def address(self) -> str:
        """As a browser would have it."""
        return self.host if self.port == 443 else f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether it is a trial on one machine, which nobody outside is to reach."""
        return self.host in ("localhost", "127.0.0.1")

    @property
    def hosts(self) -> list[str]:
        """Whom the server's certificate is for: itself, and the SuperLink behind the proxy."""
        return list(dict.fromkeys([self.host, "localhost", "127.0.0.1"]))

    @property
    def words(self) -> dict[str, Any]:
        """What templates are filled with."""
        listen = f"127.0.0.1:{self.port}" if self.local else self.port
        words = {"HOST": self.host, "PORT": self.port, "LINK_PORT": self.link_port, "LISTEN": listen}
        return words | {"PREFIX": self.prefix.rstrip("/"), "ADDRESS": self.address, "VERSION": __version__}


def init(folder: Path, deployment: Deployment, experiment: Experiment, days: int = pki.SERVER_DAYS) -> None:
    """Write a whole deployment into a folder that is new or empty."""
    pki.check_days(days)
    make_folder(folder, empty=True)
    own = is_own(experiment.data)
    experiment = replace(experiment, data=Path(experiment.data).name) if own else experiment  # nodes have their own
    pki.make_authority(folder / "pki")
    pki.make_server(folder / "pki", folder / "server" / "tls", deployment.hosts, days)
    shutil.copy(folder / "pki" / "ca.crt", folder / "server" / "tls")
    config = {"clients": ",".join(deployment.nodes), "min-online": min(2, len(deployment.nodes))}
    write_app(folder / "app", experiment, config)
    _fill_folder("server", folder / "server", deployment.words)
    for i, name in enumerate(deployment.nodes):
        _write_node(folder, deployment, name, experiment, i)
    deployment.write(folder)
    _write_readme(folder, deployment)


def add(folder: Path, name: str, public: Path | None = None) -> bool:
    """Another node, with a key that is made here, or a public one that it made itself; whether the app names it now."""
    old = Deployment.read(folder)
    check(name not in old.nodes, f"{folder} has a node {name} already; give the new one another name")
    new = replace(old, nodes=(*old.nodes, name))
    experiment = Experiment.of(read_toml(folder / "app" / "fedstrata_app" / "experiment.toml"))
    _write_node(folder, new, name, experiment, len(old.nodes), public)
    new.write(folder)
    _write_readme(folder, new)
    return add_client(folder / "app", name)


def renew(folder: Path, days: int = pki.SERVER_DAYS) -> None:
    """A new certificate and key for the server, by the same authority."""
    deployment = Deployment.read(folder)
    pki.make_server(folder / "pki", folder / "server" / "tls", deployment.hosts, days)
    _write_readme(folder, deployment)


def _write_node(
    folder: Path, deployment: Deployment, name: str, experiment: Experiment, number: int, public: Path | None = None
) -> None:
    """What one node gets, and its public key for the server."""
    place, key = folder / "nodes" / name, folder / "server" / "keys" / f"{name}.pub"
    if public is None:
        pki.make_node_key(place / "node.key", key)
    else:
        given = pki.read_public(public)
        make = "make one by ssh-keygen -t ecdsa -b 384 -N '' -f node.key"
        check(pki.is_node_key(given), f"{public} must be an EC key on P-384; {make}")
        other = next(
            (p.stem for p in key.parent.glob("*.pub") if p != key and pki.is_same(pki.read_public(p), given)), None
        )
        check(other is None, f"{public} is the key of {other} already; every node has one of its own: {make}")
        pki.write_public(key, public.read_bytes())
    parts = getattr(experiment.partition, "clients", None)
    own = is_own(experiment.data) or (parts is not None and number >= parts)
    data = _own_data(experiment.label, deployment.classes) if own else _shared_data(experiment.data, number)
    _fill_folder("node", place, deployment.words | {"NAME": name, "DATA": data})
    shutil.copy(folder / "pki" / "ca.crt", place)


def _own_data(label: str, classes: str) -> str:
    said = (
        "# Its data: an .npz, .csv or .parquet file, or a folder of pictures by class. EDIT THIS.\n"
        f'data = "/path/to/data.csv"\nlabel = {toml.inline(label)}  # the column of the labels'
    )
    return (
        f"{said}\nclasses = {toml.inline(classes)}  # its words, in the order that all nodes have" if classes else said
    )


def _shared_data(data: str, number: int) -> str:
    return (
        f"# For a trial: part {number} of {data}, as the experiment splits it. For data of its own, say instead\n"
        f'# data = "/path/to/data.csv" and label = "diagnosis".\npartition-id = {number}'
    )


def _fill_folder(kind: str, place: Path, words: dict[str, Any]) -> None:
    """All templates of a kind; scripts can be run."""
    place.mkdir(parents=True, exist_ok=True)
    for template in sorted((Path(__file__).parent / "templates" / kind).iterdir()):
        path = place / template.name
        path.write_text(filled(f"{kind}/{template.name}", **words))
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)


def _write_readme(folder: Path, deployment: Deployment) -> None:
    ends = pki.read_certificate(folder / "server" / "tls" / "server.crt").not_valid_after_utc
    who = _in_words(deployment.nodes)
    words = deployment.words | {"NODES_IN_WORDS": who, "ENDS": f"{ends:%Y-%m-%d}"}
    (folder / "README.md").write_text(filled("README.md", **words))


def _in_words(nodes: Sequence[str]) -> str:
    return f"A server and {len(nodes)} node{'s' * (len(nodes) != 1)}: {', '.join(nodes)}"
