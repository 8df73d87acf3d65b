"""A whole federation on this machine: a SuperLink and SuperNodes, over TLS, each node known by its key.

    with Federation(folder, nodes=3) as fed:
        run = fed.submit(app, {"out": "runs/a"})
        assert fed.wait(run)["status"] == "finished:completed"

Only Flower's commands are used, and GET /health. Everything listens on 127.0.0.1 alone, on ports that were free.
"""

import json
import os
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any, Self

from fedstrata import toml
from fedstrata.deploy import pki
from fedstrata.deploy.daemons import LINK, Daemons, program
from fedstrata.errors import FedstrataError, check

HOST = "127.0.0.1"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Flower calls home in two ways; these switch both off."""

NAME = "here"
"""What `flwr` calls the SuperLink."""

TAKEN = b"SuperNode ID:"
"""What the log of a node says when the SuperLink has taken it."""

PATIENCE = 600.0
"""Seconds for what takes a few where the machine has nothing else to do: programs to start, commands to be done.

A node that was killed has to wait for a minute: as long the SuperLink takes it to be online.
"""

PORTS, BLOCK = range(10_000, 30_000), 100
"""Where free ports are looked for, which the kernel gives to no connection; every process has a block of them."""

_turns = cycle(range(BLOCK))


class Federation(Daemons):
    """A SuperLink and its SuperNodes as a block: started when it begins, stopped when it ends, however it ends.

    `nodes` is a number, or the node config of each node by its name. All that is written is in `folder`: logs/NAME.log,
    the keys, Flower's own files, and what nodes remember. With `database` the SuperLink remembers across a restart.
    `through` is an address that nodes connect to in place of the SuperLink's, for a proxy in front of it.
    """

    def __init__(
        self,
        folder: str | Path,
        nodes: int | Mapping[str, Mapping[str, Any]] = 3,
        *,
        database: bool = True,
        poll: float = 0.3,
        env: Mapping[str, str] | None = None,
        through: str | None = None,
    ):
        super().__init__(folder, QUIET | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(poll)} | dict(env or {}))
        self.nodes = {n: dict(c) for n, c in (named(nodes) if isinstance(nodes, int) else nodes).items()}
        self.database, self.through = database, through
        self.port = free_port()
        self.ids: dict[str, str] = {}  # Flower's own of every node

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{HOST}:{self.port}"

    @property
    def keys(self) -> Path:
        """The folder of certificates and keys; its name marks processes that show nothing but their command line."""
        return self.folder / self.mark

    def __enter__(self) -> Self:
        try:
            if self.keeper is None:
                self.prepare()
            self.start_superlink()
            self.register(*self.nodes)
            for name in self.nodes:
                self.spawn_node(name)
            self.wait_online()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def prepare(self) -> None:
        """Make keys and folders, and start the keeper; the block does it where nobody did before."""
        (self.folder / "memory").mkdir(parents=True, exist_ok=True)
        pki.make_authority(self.keys, days=30)
        pki.make_server(self.keys, self.keys, ["localhost", HOST], days=29)
        for name in self.nodes:
            self.make_key(name)
        here = {"address": self.address, "root-certificates": str(self.keys / "ca.crt")}
        (self.home("cli") / "config.toml").write_text(toml.dumps({"superlink": {"default": NAME, NAME: here}}))
        self.watch()

    def make_key(self, name: str) -> Path:
        """The private key of a node, which is made where there is none."""
        if not (self.keys / name).exists():
            pki.make_node_key(self.keys / name, self.keys / f"{name}.pub")
        return self.keys / name

    def start_superlink(self, seconds: float = PATIENCE) -> None:
        """Start the SuperLink, also again after it was killed, and wait until it answers."""
        tls = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.crt", "--ssl-keyfile": "server.key"}
        args = ["--host", HOST, "--port", str(self.port), "--enable-supernode-auth"]
        args += [a for option, file in tls.items() for a in (option, str(self.keys / file))]
        args += ["--database", str(self.folder / "superlink.db")] if self.database else []
        self._spawn(LINK, "flower-superlink", *args, "--disable-runtime-dependency-installation")
        for _ in self._until(seconds, "the SuperLink does not answer", LINK):
            if self.healthy():
                return

    def healthy(self) -> bool:
        """Whether the SuperLink answers."""
        trust = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        with suppress(OSError), urllib.request.urlopen(f"https://{self.address}/health", timeout=2, context=trust) as a:
            return a.status == 200
        return False

    def register(self, *names: str) -> None:
        """Tell the SuperLink the public keys of these nodes."""

        def one(name: str) -> str:
            return self.flwr("supernode", "register", str(self.keys / f"{name}.pub"), NAME)["node-id"]

        with ThreadPoolExecutor(4) as threads:
            self.ids |= zip(names, map(str, threads.map(one, names)), strict=True)

    def spawn_node(self, name: str) -> None:
        """Start a SuperNode, and wait for nothing."""
        args = ["--superlink", self.through or self.address, "--root-certificates", str(self.keys / "ca.crt")]
        args += ["--auth-supernode-private-key", str(self.keys / name), "--host", HOST, "--port", str(free_port())]
        config = {"client": name, "memory": str(self.folder / "memory" / name)} | self.nodes[name]
        self._spawn(name, "flower-supernode", *args, "--node-config", str(self._config(name, config)))

    def start_node(self, name: str, seconds: float = PATIENCE) -> None:
        """Start a SuperNode, also again after it was killed, and try until the SuperLink takes it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            begin = self._log(name).stat().st_size if self._log(name).exists() else 0
            self.spawn_node(name)
            while self.processes[name].poll() is None and time.monotonic() < until:
                if TAKEN in self._log(name).read_bytes()[begin:]:
                    return
                time.sleep(0.2)
            self.kill(name)
            time.sleep(2)
        raise FedstrataError(f"the SuperLink did not take {name} in {seconds:.0f} s; {self.tail(name)}")

    def online(self) -> set[str]:
        """The nodes that the SuperLink takes to be online: those that were killed for a minute more."""
        listed = self.flwr("supernode", "list", NAME)["nodes"]
        there = {str(n["node-id"]) for n in listed if n["status"] == "online"}
        return {name for name, node in self.ids.items() if node in there}

    def wait_online(self, *names: str, seconds: float = PATIENCE) -> None:
        """Wait until these nodes, or all, are online."""
        wanted = set(names or self.nodes)
        for _ in self._until(seconds, f"not all of {', '.join(sorted(wanted))} came online", *wanted):
            if wanted <= self.online():
                return

    def submit(self, app: str | Path, config: Mapping[str, Any] | None = None) -> str:
        """Hand in an app folder with some run config; the number of the run."""
        said = ["--run-config", str(self._config("run", config))] if config else []
        return str(self.flwr("run", str(Path(app).resolve()), NAME, *said)["run-id"])

    def status(self, run: str) -> dict[str, Any]:
        """What Flower says of a run: "status" is pending, starting, running, or finished:... ."""
        return self.flwr("list", NAME, "--run-id", run)["runs"][0]

    def wait(self, run: str, seconds: float = 300) -> dict[str, Any]:
        """The status of a run when it has finished."""
        for _ in self._until(seconds, f"run {run} did not finish", pause=1):
            if (found := self.status(run))["status"].startswith("finished"):
                return found
        raise AssertionError

    def flwr(self, *args: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """What a command of `flwr` says, which it does in JSON; a sentence where it does not do what it was told."""
        call = [program("flwr"), *args, "--format", "json"]
        how: dict[str, Any] = {"env": self.environment("cli"), "cwd": self.folder, "start_new_session": True}
        try:
            done = subprocess.run(call, capture_output=True, text=True, timeout=seconds, **how)
        except subprocess.TimeoutExpired:
            raise FedstrataError(f"flwr {' '.join(args)} did not end in {seconds:.0f} s") from None
        try:
            said = json.loads(done.stdout)
        except ValueError:
            said = {"error-message": (done.stderr or done.stdout).strip()}
        if done.returncode or not said.get("success"):  # it may fail with exit code 0
            raise FedstrataError(f"flwr {' '.join(args)} failed: {said.get('error-message', said)}")
        return said

    def _config(self, name: str, said: Mapping[str, Any]) -> Path:
        """A file with some settings, which Flower reads as they are: on a command line quotes would be lost."""
        path = self.folder / "config" / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(toml.dumps(said))
        return path


def named(count: int) -> dict[str, dict[str, Any]]:
    """The nodes of a federation that shares out one data set: node-0 has its first part, and so on."""
    check(count >= 1, f"a federation has at least 1 node; got {count}")
    width = len(str(count - 1))
    return {f"node-{i:0{width}}": {"partition-id": i} for i in range(count)}


def free_port() -> int:
    """A port that is free now, and that neither we nor another process of ours is given too before it is used."""
    first = PORTS.start + os.getpid() * BLOCK % len(PORTS)
    for port in (first + next(_turns) for _ in range(BLOCK)):
        with socket.socket() as s, suppress(OSError):
            s.bind((HOST, port))
            return port
    raise FedstrataError(f"none of the ports {first} to {first + BLOCK - 1} is free on {HOST}")
