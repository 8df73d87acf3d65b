"""Flower's programs as processes of ours: each with a log and files of its own, and none left when we end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from fedstrata.deploy.pki import INSTALL
from fedstrata.deploy.processes import GRACE, MARK, keeper, marked
from fedstrata.errors import FedstrataError, SettingError, check

LINK = "superlink"
"""What the SuperLink is called among the processes."""


class Daemons:
    """Processes by name, below a folder: logs/NAME.log, and home/NAME for Flower's own files."""

    def __init__(self, folder: str | Path, env: Mapping[str, str]):
        self.folder = Path(folder).resolve()
        self.mark = f"federation-{uuid4().hex[:12]}"
        self.env = dict(env) | {MARK: self.mark}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.keeper: subprocess.Popen[bytes] | None = None

    def watch(self) -> None:
        """From here on, whatever is started ends with us, also when we are killed."""
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self.keeper = keeper(self.mark)

    def _spawn(self, name: str, command: str, *args: str) -> None:
        check(name not in self.processes, f"{name} is running already")
        with self._log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [program(command), *args],
                env=self.environment(name),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def environment(self, name: str) -> dict[str, str]:
        """With the programs of this Python first: Flower starts its others by their names."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return os.environ | {"PATH": path, "FLWR_HOME": str(self.home(name)), "PYTHONUNBUFFERED": "1"} | self.env

    def home(self, name: str) -> Path:
        """The folder of Flower's own files for one process, or for the command (cli)."""
        home = self.folder / "home" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Kill one process, the SuperLink ("superlink") or a node, and bury it.

        What it has started watches it and ends a little later; it would not as long as there is a zombie.
        """
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(30)

    def tail(self, name: str, lines: int = 12) -> str:
        """The end of a process's log, for sentences about it."""
        log = self._log(name)
        text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
        return f"the end of {log}:\n" + "\n".join(text)

    def left(self) -> list[int]:
        """The processes of this federation that are running."""
        return marked(self.mark)

    def stop(self) -> None:
        """Stop all that was started: nodes first, then the SuperLink, then whatever they have started."""
        for names in ([n for n in self.processes if n != LINK], [n for n in self.processes if n == LINK]):
            for name in names:
                self.processes[name].terminate()
            until = time.monotonic() + GRACE
            for name in names:
                process = self.processes.pop(name)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, until - time.monotonic()))
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its own session
                process.wait()
        if self.keeper is not None and self.keeper.stdin is not None:
            self.keeper.stdin.close()
            self.keeper.wait()
            self.keeper = None

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _until(self, seconds: float, sentence: str, *names: str, pause: float = 0.2) -> Iterator[None]:
        """Again and again, until the time is over or one of these processes has ended: then a sentence is raised."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            yield
            for name in names:
                if name in self.processes and (code := self.processes[name].poll()) is not None:
                    raise FedstrataError(f"{name} ended with exit code {code}; {self.tail(name)}")
            time.sleep(pause)
        about = f"; {self.tail(names[0])}" if names else ""
        raise FedstrataError(f"{sentence} within {seconds:.0f} s{about}")


def program(name: str) -> str:
    """The path of one of Flower's commands, beside this Python."""
    path = Path(sys.executable).parent / name  # not resolved, which would lead out of a virtual environment
    if not path.exists():
        raise SettingError(f"a federation over the network {INSTALL} (there is no {path})")
    return str(path)
