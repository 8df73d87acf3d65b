"""A federation whose nodes come through nginx, with the configuration that `fedstrata deploy init` writes."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedstrata.deploy import outside
from fedstrata.deploy.local import HOST, Federation, free_port
from fedstrata.deploy.outside import Outside
from fedstrata.deploy.templates import filled
from tests.patience import PATIENCE


@contextmanager
def proxied(folder: Path, nodes: Any = 1) -> Iterator[tuple[Federation, Outside]]:
    """(a federation, what the world sees of it)."""
    port = free_port()
    fed = Federation(folder / "federation", nodes, through=f"localhost:{port}")
    fed.prepare()
    nginx = None
    try:
        nginx = start_nginx(proxy_of(fed), fed, port)
        with fed, patch.object(outside, "SECONDS", PATIENCE):  # however long answers take
            yield fed, Outside("localhost", port, fed.keys / "ca.crt")
    finally:
        fed.stop()  # all that carries its mark
        if nginx is not None:
            nginx.wait(PATIENCE)
    assert not fed.left()


def proxy_of(fed: Federation) -> Path:
    """The folder of the proxy: nginx shows no environment, but its command line, which has the mark so."""
    return fed.folder.parent / f"proxy-{fed.mark}"


def start_nginx(folder: Path, fed: Federation, port: int) -> "subprocess.Popen[bytes]":
    """nginx as a child of ours, in the foreground, on loopback."""
    program = shutil.which("nginx", path=os.pathsep.join(["/usr/sbin", "/usr/local/sbin", os.environ["PATH"]]))
    assert program is not None, "these tests need nginx: apt-get install nginx-light"
    (folder / "state" / "tmp").mkdir(parents=True)
    (folder / "tls").symlink_to(fed.keys)
    words = {"LINK_PORT": fed.port, "LISTEN": f"{HOST}:{port}", "HOST": "localhost"}
    (folder / "nginx.conf").write_text(filled("server/nginx.conf", **words))
    call = [program, "-e", "stderr", "-p", str(folder / "state"), "-c", str(folder / "nginx.conf")]
    call += ["-g", "user root;"] if os.geteuid() == 0 else []  # the folder is its owner's alone
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(call, stderr=log, start_new_session=True)
