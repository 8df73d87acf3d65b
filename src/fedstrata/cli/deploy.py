"""The commands of deployments: a federation on this machine, or the folders for one over many."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from fedstrata.cli.options import File, Json, Method, RunFolder, Set, Work, spread
from fedstrata.deploy.pki import SERVER_DAYS

app = Typer(no_args_is_help=True, help="A federation over the network: on this machine, or on many.")

Folder = Annotated[Path, Argument(help="The folder of the deployment.")]
Days = Annotated[int, Option(help="How many days the server's certificate is valid.")]


@app.command()
@spread
def local(
    *,
    experiment: File = None,
    nodes: Annotated[int | None, Option(help="How many nodes, which are the clients.", show_default="3")] = None,
    method: Method = None,
    given: Work,
    set_: Set = None,
    out_dir: RunFolder = None,
    work: Annotated[Path | None, Option(help="Keep logs and Flower's files in this folder.")] = None,
    json_: Json = False,
) -> None:
    """Run an experiment over TLS between processes of this machine: a server, and a node for every client."""
    from fedstrata.commands.deploy import local
    from fedstrata.commands.settings import Options

    local(Options(experiment, method, vars(given), set_), nodes, out_dir, work, json_)


@app.command()
@spread
def init(
    *,
    folder: Annotated[Path, Argument(help="A new folder for the deployment.")],
    experiment: File = None,
    nodes: Annotated[str, Option(help="Names of the nodes, e.g. hospital-a,hospital-b,hospital-c.")] = "",
    host: Annotated[str, Option(help="The server, as nodes call it, e.g. fl.example.org.")] = "",
    port: Annotated[int, Option(help="The port of the proxy, which nodes call.")] = 443,
    link_port: Annotated[int, Option(help="The port of the SuperLink behind the proxy, on 127.0.0.1.")] = 8000,
    prefix: Annotated[str, Option(help="Where things are installed on server and nodes.")] = "/opt/fedstrata",
    days: Days = SERVER_DAYS,
    method: Method = None,
    given: Work,
    set_: Set = None,
) -> None:
    """Write a deployment: the app, certificates and keys, start scripts, systemd units, a proxy, a README."""
    from fedstrata.commands.deploy import init
    from fedstrata.commands.settings import Options

    init(Options(experiment, method, vars(given), set_), folder, nodes, host, port, link_port, prefix, days)


@app.command()
def add(
    folder: Folder,
    name: Annotated[str, Argument(help="The new node, e.g. hospital-d.")],
    key: Annotated[Path | None, Option(help="A public key that the node has made itself.")] = None,
) -> None:
    """Add a node: its key, its folder, and its name in the app."""
    from fedstrata.commands.deploy import add

    add(folder, name, key)


@app.command()
def renew(folder: Folder, days: Days = SERVER_DAYS) -> None:
    """Renew the server's certificate, by the same authority: nodes need nothing new."""
    from fedstrata.commands.deploy import renew

    renew(folder, days)


@app.command()
def check(
    folder: Folder,
    server: Annotated[str | None, Option(help="Look at a running server too, e.g. https://fl.example.org.")] = None,
    json_: Json = False,
) -> None:
    """Check certificates, keys and versions, and, from outside, that a server shows nodes their paths and no others."""
    from fedstrata.commands.deploy import check

    check(folder, server, json_)
