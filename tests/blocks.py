"""The blocks of a page, run: `python -m tests.blocks docs/quickstart.md` writes into it what its commands print now.

A page is a session: its blocks share a new folder and one Python namespace, in the order of the page.

- console: lines with `$ ` are commands; `fedstrata` runs in this process. The lines below a command are what it prints;
  none: that is not looked at; a line `...` stands for any lines, and a line `?` is filled in by the command above.
- python: executed. A block whose title is `prints` is what the one above it prints.
- a block with the name of a file as its title is also written there; TOML must be an experiment or a sweep.
- `<!-- not run: why -->` above a block says that it cannot be run everywhere. Where that ends with `make test-network
  does`, tests/network/test_pages.py runs it, in a shell that goes on from block to block.
"""

import io
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from fedstrata import console
from fedstrata.cli import main
from fedstrata.experiment import Experiment
from fedstrata.lab import many
from fedstrata.lab.sweep import SWEEP, expand

FENCE = re.compile(
    r'^(?:<!-- not run: (?P<reason>.+?) -->\n+)?```(?P<kind>\w+)(?: title="(?P<title>[^"]*)")?\n(?P<text>.*?)^```$',
    re.M | re.S,
)
PRINTS = "prints"
WIDTH = 80
HOME = "/home/you"
NETWORKED = "make test-network does"
OTHER_TOML = ("pyproject.toml",)
"""Files in TOML that are no experiments."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where its text is in the page, what kind it is, its title, and why it is not run if so."""

    place: tuple[int, int]
    line: int
    kind: str
    title: str
    text: str
    reason: str | None

    @property
    def networked(self) -> bool:
        """Whether a test runs it that has a network."""
        return self.reason is not None and self.reason.endswith(NETWORKED)


def blocks(page: str) -> list[Block]:
    """The blocks of a page in their order."""
    found = []
    for m in FENCE.finditer(page):
        line = page.count("\n", 0, m.start("kind")) + 1
        found.append(Block(m.span("text"), line, m["kind"], m["title"] or "", m["text"], m["reason"]))
    return found


class Session:
    """A folder and a namespace in which the blocks of a page run, one after another."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.printed = ""

    def run(self, block: Block) -> str:
        """Run a block; what it should read."""
        if block.title == PRINTS:
            return self.printed
        if block.title:
            self._write(block)
        if block.kind == "console":
            return "".join(self._command(command, shown) for command, shown in commands(block.text))
        if block.kind == "python":
            with self._listening() as heard:
                exec(compile(block.text, f"block of line {block.line}", "exec"), self.names)
            self.printed = heard.getvalue()
        elif block.kind == "toml":
            self._checked(tomllib.loads(block.text), block.title)
        return block.text

    def _checked(self, settings: dict[str, Any], title: str) -> None:
        if SWEEP in settings:
            expand(settings)
        elif title not in OTHER_TOML:
            Experiment.of(settings)

    def _write(self, block: Block) -> None:
        path = self.folder / block.title
        assert path.resolve().is_relative_to(self.folder.resolve()), f"{block.title} is not below the folder"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)

    def _command(self, command: str, shown: str) -> str:
        code, said = self.carry_out(command)
        said = said.replace(str(self.folder), HOME)
        said = "".join(f"{line.rstrip()}\n" for line in said.splitlines())
        assert code == 0 or "fedstrata: " in shown, f"$ {command}\n{said}ended with {code}"
        return f"$ {command}\n{said if shown else ''}"

    def carry_out(self, command: str) -> tuple[int, str]:
        """(the exit code of a command, what it says)."""
        with self._listening() as heard:
            code = carried_out(shlex.split(command.replace("\\\n", " ")))
        return code, heard.getvalue()

    @contextmanager
    def _listening(self) -> Iterator[io.StringIO]:
        heard = io.StringIO()
        with chdir(self.folder), narrow(), redirect_stdout(heard), redirect_stderr(heard):
            yield heard


def commands(text: str) -> list[tuple[str, str]]:
    """(command, what is shown below it) of a console block; a command may go on after a backslash."""
    found: list[tuple[str, str]] = []
    for piece in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command = re.match(r"(?:.*\\\n)*.*", piece)
        assert command is not None
        found.append((command[0], piece[command.end() + 1 :]))
    return found


def carried_out(words: list[str]) -> int:
    """The exit code of a command; fedstrata itself and Python scripts run in this process."""
    name, *args = words
    if words == ["make", "demo"]:
        name, args = "fedstrata", ["demo"]
    if name == "fedstrata":
        try:
            main(args)
        except SystemExit as stop:
            return int(stop.code or 0)
    elif name == "python" and len(args) == 1:
        runpy.run_path(args[0], run_name="__main__")
    elif name in {"ls", "cat", "head"}:
        print(subprocess.run(words, capture_output=True, text=True, check=True).stdout, end="")  # noqa: T201
    else:
        raise AssertionError(f"`{shlex.join(words)}` is not run here; write <!-- not run: why --> above its block")
    return 0


@contextmanager
def narrow() -> Iterator[None]:
    """Tables as wide as a page and one core, whatever terminal and machine this is."""
    consoles = [console.out, console.err]
    before = [c.width for c in consoles]
    try:
        for one in consoles:
            one.width = WIDTH
        one_core = patch.object(many, "cores", lambda: 1)  # several runs go on in this process, where torch is loaded
        with one_core, patch.object(console, "NEWS", float("inf")):
            yield
    finally:
        for one, width in zip(consoles, before, strict=True):
            one.width = width


MASKS = {
    r"[━╸╺─]+": "-",  # bars and rules
    r"[\d.]+ s a round": "s a round",
    r"left [-\d:…]+": "left",
    r"\d{8}-\d{6}": "DATE",
    r"\d{4}-\d\d-\d\d": "DATE",
    r"file:///\S*/": "file:///.../",
    r"\b[0-9a-f]{12,64}\b": "HASH",
    r"[\d.]+ seconds": "seconds",
}
NUMBER = re.compile(r"\d+\.\d+(?:e-\d+)?")


def same(shown: str, real: str) -> bool:
    """Whether both say the same but for times, dates and bars; digits after a point may differ by a twentieth."""
    a, b = _lines(shown), _lines(real)
    while a and b and a[0] != "...":
        if not _near(a.pop(0), b.pop(0)):
            return False
    if not a or a[0] != "...":
        return a == b
    rest = "\n".join(a[1:])
    return any(same(rest, "\n".join(b[i:])) for i in range(len(b) + 1))


def _lines(text: str) -> list[str]:
    """Without what may differ, and with single spaces."""
    text = _without_times(text)
    for what, instead in MASKS.items():
        text = re.sub(what, instead, text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def _without_times(text: str) -> str:
    """Tables without their column of seconds, which ends where its title does."""
    lines, begin, end = [], 0, 0
    for line in text.splitlines():
        if "time," in line:
            begin, end = line.index("time,"), line.index("time,") + len("time,")
        elif not line.strip():
            begin = end = 0
        lines.append(line[:begin] + " " * len(line[begin:end]) + line[end:])
    return "\n".join(lines)


def _near(a: str, b: str) -> bool:
    numbers = zip(NUMBER.findall(a), NUMBER.findall(b), strict=False)
    alike = all(abs(float(x) - float(y)) <= 0.05 * float(x) + 0.5 for x, y in numbers)
    return alike and NUMBER.sub("#", a) == NUMBER.sub("#", b)


def written(page: str, folder: Path) -> str:
    """The page with what its blocks print now; those with `...` stay as they are."""
    session, pieces, at = Session(folder), [], 0
    for block in blocks(page):
        if block.reason is None:
            real = session.run(block)
            begin, end = block.place
            pieces += [page[at:begin], block.text if re.search(r"^\.\.\.$", block.text, re.M) else real]
            at = end
    return "".join(pieces) + page[at:]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with TemporaryDirectory() as place:
            text = written(Path(name).read_text(), Path(place))
        Path(name).write_text(text)
