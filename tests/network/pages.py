"""A page whose blocks need a network: its commands run in a shell that goes on from block to block, on free ports."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from uuid import uuid4

from fedstrata.deploy.local import QUIET, free_port
from fedstrata.deploy.processes import MARK, keeper, marked, sweep
from tests.blocks import WIDTH, Session
from tests.patience import PATIENCE, eventually

PORT = re.compile(r"(?:--port |--link-port |PORT=)(\d+)")
COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Terminal:
    """A shell as a person has it; all that it starts carries a mark."""

    def __init__(self, folder: Path, mark: str):
        self.mark = mark
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = os.environ | QUIET | {"PATH": path, "COLUMNS": str(WIDTH), MARK: mark, "BASH_ENV": ""}
        env |= {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}
        self.shell = subprocess.Popen(
            ["bash", "--norc"], cwd=folder, env=env, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, command: str) -> tuple[int, str]:
        """(its exit code, what it says); one that takes too long ends with all others."""
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        end = f"end-{uuid4().hex}"
        late = Timer(PATIENCE, sweep, [self.mark])
        late.start()
        try:
            self.shell.stdin.write(f"{{ {command}\n}} < /dev/null\necho {end} $?\n")
            self.shell.stdin.flush()
            said = ""
            for line in self.shell.stdout:
                before, mine, code = line.partition(end)
                said += before
                if mine:
                    return int(code), COLOUR.sub("", said)
        finally:
            late.cancel()
        raise AssertionError(f"$ {command}\n{said}did not end in {PATIENCE:.0f} s, or ended the shell")

    def close(self) -> None:
        """End the shell alone, as far as it has not ended."""
        assert self.shell.stdout is not None
        if not self.shell.stdout.closed:
            self.shell.communicate(timeout=PATIENCE)


class NetworkSession(Session):
    """Commands but fedstrata's own run in the terminal, and the ports of the page are others, which are free."""

    def __init__(self, folder: Path, terminal: Terminal, page: str):
        super().__init__(folder)
        self.terminal = terminal
        self.ports = {port: str(free_port()) for port in dict.fromkeys(PORT.findall(page))}

    def carry_out(self, command: str) -> tuple[int, str]:
        """With those ports there, and the page's in what is said."""
        command = _replaced(command, self.ports)
        code, said = super().carry_out(command) if command.startswith("fedstrata ") else self.terminal.run(command)
        return code, _replaced(said, {there: here for here, there in self.ports.items()})


def _replaced(text: str, ports: dict[str, str]) -> str:
    return re.sub(r"\b\d+\b", lambda m: ports.get(m[0], m[0]), text)


@contextmanager
def walk(folder: Path, page: str) -> Iterator[NetworkSession]:
    """A session in a folder whose name is the mark, as nginx shows no other; what it started ends with the block."""
    mark = f"page-{uuid4().hex[:12]}"
    (folder / mark).mkdir()
    watch, terminal = keeper(mark), Terminal(folder / mark, mark)
    try:
        yield NetworkSession(folder / mark, terminal, page)
        terminal.close()
        assert eventually(lambda: marked(mark) == []), "the page leaves something running"
    finally:
        watch.communicate()  # the end of its input, for which it ends all that carries the mark
        terminal.close()
    assert marked(mark) == []
