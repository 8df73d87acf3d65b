"""Deployments: a federation on this machine, or the folders for one over many."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from fedstrata.commands.settings import Options, folder_name, ready, run_folder, tell
from fedstrata.console import Watcher, err, out
from fedstrata.data import is_own
from fedstrata.deploy import pki
from fedstrata.deploy.check import Check, check_folder
from fedstrata.deploy.check_server import check_server
from fedstrata.deploy.folder import Deployment
from fedstrata.deploy.folder import add as added
from fedstrata.deploy.folder import init as written
from fedstrata.deploy.folder import renew as renewed
from fedstrata.deploy.follow import play
from fedstrata.deploy.local import Federation, named, program
from fedstrata.errors import DataError, FedstrataError
from fedstrata.errors import check as checked
from fedstrata.experiment import SPLIT, Experiment
from fedstrata.lab.sweep import SWEEP
from fedstrata.record import json_text

NODES = 3
"""Nodes of a federation on this machine, where nobody says how many."""


def local(options: Options, nodes: int | None, out_dir: Path | None, work: Path | None, json_: bool) -> None:
    """Run an experiment over TLS between processes of this machine: a server, and a node for every client."""
    program("flower-superlink")  # or a sentence, before anything else
    name, settings = options.read()
    checked(SWEEP not in settings, "deploy local runs one experiment; fedstrata run takes a [sweep]")
    checked(
        None in (nodes, options.given.get("clients")), "--nodes says how many clients there are; leave out --clients"
    )
    wanted = nodes if nodes is not None else None if "clients" in (settings.get("partition") or {}) else NODES
    exp, loaded = ready(options, name, settings, lambda exp: _with_clients(exp, wanted))
    count = len(exp.clients(loaded))
    need = f"this data has {count} clients, each of which is a node; --nodes says {nodes}, leave it out"
    checked(nodes in (None, count), need)
    with run_folder(out_dir, folder_name(name)) as folder, _workplace(work) as place:
        err.print(f"Starting a server and {count} node{'s' * (count != 1)} on this machine ...", highlight=False)
        with Federation(place, named(count)) as fed, Watcher(err, {name: exp.rounds}) as watcher:
            lines = play(fed, exp, folder, watcher.of(name))
    tell(exp, name, lines, folder, json_)


def _split(exp: Experiment) -> Experiment:
    """With the usual partition, where nobody said one."""
    return exp if exp.partition is not None else replace(exp, partition=SPLIT)


def _with_clients(exp: Experiment, count: int | None) -> Experiment:
    """The same split over so many clients, where a split takes a number of them."""
    if count is None or not hasattr(exp.partition, "clients"):
        return exp
    changed: Any = {"clients": count}
    assert exp.partition is not None
    return replace(exp, partition=replace(exp.partition, **changed))


@contextmanager
def _workplace(given: Path | None) -> Iterator[Path]:
    """The folder that was given, or one that goes away."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with TemporaryDirectory(prefix="fedstrata-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def init(
    options: Options, folder: Path, nodes: str, host: str, port: int, link_port: int, prefix: str, days: int
) -> None:
    """Write a deployment: the app, certificates and keys, start scripts, systemd units, a proxy, a README."""
    checked(bool(host), "say where the server is, as nodes call it: --host fl.example.org, or localhost for a trial")
    deployment = Deployment(host, _names(nodes), port, link_port, prefix)
    _, settings = options.read()
    checked(SWEEP not in settings, "a deployment is of one experiment; leave out [sweep]")
    with options.blamed():
        exp = Experiment.of(settings)
        said = "clients" in (settings.get("partition") or {})
        exp = exp if is_own(exp.data) else _with_clients(_split(exp), None if said else len(deployment.nodes))
    words = _words(exp)
    if with_comma := [w for w in words if "," in w]:
        raise DataError(
            f"the label {with_comma[0]!r} has a comma, which stands between labels on a node; call it otherwise"
        )
    written(folder, replace(deployment, classes=", ".join(words)), exp, days)
    out.print(f"The deployment is in {folder}; {folder / 'README.md'} says what to do.", markup=False, soft_wrap=True)


def _words(exp: Experiment) -> Sequence[str]:
    """The words for labels in a table of the lab, in the order of their numbers, if it is at hand and has any."""
    if is_own(exp.data) and Path(exp.data).is_file():
        with suppress(FedstrataError):  # what is wrong with the lab's data is no matter of the deployment
            return exp.dataset().names or ()
    return ()


def add(folder: Path, name: str, key: Path | None) -> None:
    """Add a node: its key, its folder, and its name in the app."""
    in_app = added(folder, name, key)
    place = Deployment.read(folder).prefix.rstrip("/")
    handed = "and adds its own node.key to it" if key else "and nobody else"
    out.print(f"{folder / 'nodes' / name} is for {name} {handed}.", markup=False, soft_wrap=True, highlight=False)
    if in_app:
        app = folder / "app" / "pyproject.toml"
        out.print(f"It belongs to the federation from the next run on: {app} names it.", markup=False, soft_wrap=True)
    out.print(f"Copy {folder / 'server' / 'keys'} and {folder / 'app'} to the server, and there run", soft_wrap=True)
    out.print(f"  sudo -u fedstrata {place}/server/register.sh", soft_wrap=True, highlight=False)


def renew(folder: Path, days: int) -> None:
    """Renew the server's certificate, by the same authority: nodes need nothing new."""
    renewed(folder, days)
    ends = pki.read_certificate(folder / "server" / "tls" / "server.crt").not_valid_after_utc
    out.print(f"The certificate in {folder / 'server' / 'tls'} is valid until {ends:%Y-%m-%d}.", highlight=False)
    out.print("Copy that folder to the server, and there run, the second between two runs:", highlight=False)
    out.print("  systemctl reload fedstrata-proxy\n  systemctl restart fedstrata-superlink", highlight=False)


def check(folder: Path, server: str | None, json_: bool) -> None:
    """Check certificates, keys and versions, and, from outside, that a server shows nodes their paths and no others."""
    found = check_folder(folder) + (check_server(folder, server) if server is not None else [])
    out.print(checks_table(found))
    bad = [c for c in found if c.fine is False]
    out.print(f"{len(bad)} of {len(found)} checks failed." if bad else f"{len(found)} checks, nothing to do.")
    if json_:
        typer.echo(json_text({"fine": not bad, "checks": [asdict(c) for c in found]}))
    if bad:
        raise typer.Exit(2)


def checks_table(checks: Sequence[Check]) -> Table:
    """What was looked at, what was found, and what to do about what fails."""
    table = Table(box=SIMPLE_HEAD)
    for column in ("check", "", "found, and what to do" if any(c.fine is False for c in checks) else "found"):
        table.add_column(column, overflow="fold")
    words = {True: "[green]ok[/]", False: "[red]FAILS[/]", None: "[dim]-[/]"}
    for c in checks:
        remedy = f";\n[bold]{escape(c.remedy)}[/]" if c.fine is False else ""
        table.add_row(c.what, words[c.fine], f"{escape(c.found)}{remedy}")
    return table


def _names(text: str) -> tuple[str, ...]:
    return tuple(n.strip() for n in text.split(",") if n.strip())
