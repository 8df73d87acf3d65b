"""A session on a lent machine with a GPU that nothing can be downloaded to, and that takes 64 MiB along with each call.

    python experiments/gpu_session.py pack fashion_mnist cifar10    here: data for the calls, in .data/calls/1, 2, ...
    python experiments/gpu_session.py run .data/calls/1 $OUT        there, in each call: unpack, run, until time is up
    python experiments/gpu_session.py gather FOLDER                 here: add what came back to the results

`run` makes what is missing in ORDER, as far as the data of this call and of those before it go. What a call broke off,
the next one on the same machine goes on with. PYTHONPATH=src does instead of an installation.
"""

import lzma
import os
import re
import shlex
import sys
from io import BytesIO
from pathlib import Path
from subprocess import Popen
from time import monotonic, sleep

import numpy as np
import typer

from fedstrata.data.download import missing
from fedstrata.data.sources import SOURCES
from fedstrata.data.store import root
from fedstrata.reproduce import plan, read

ORDER = """
fedlws-table10 --seeds 1
fedlws-table4 --seeds 1 --rows model-wise
fedlws-table1-cifar10 --seeds 1 --rows FedDisco --rows L-DAWA --columns "alpha 0.1" --columns "alpha 100"
fedlws-table1-fashion --columns "alpha 0.1"
fedlws-table1-cifar10 --seeds 1 --rows FedProx --columns "alpha 0.1" --columns "alpha 100"
fedlws-table1-cifar10 --seeds 1 --rows FedDyn --columns "alpha 0.1" --columns "alpha 100"
fedlws-table1-fashion --columns "alpha 0.5"
fedlws-table1-fashion --columns "alpha 100"
fedlws-figure6
fedlws-figure4
fedlws-figure3
fedlws-table12
fedlws-table8
fedlws-table4 --seeds 1
fedlws-table1-cifar10 --seeds 1
fedlws-table5 --seeds 1
fedlws-table6 --seeds 1
fedlws-table7 --seeds 1
fedpbs-cifar10 --seeds 1
"""
"""What is to be made first, as words of `fedstrata reproduce`; a process each, with runs whose clients do the same."""

HERE = Path(".data")
"""Is ignored by git, and stays on the lent machine from call to call."""

ROOM = 58 << 20
"""Bytes of a call's data; the working tree takes the rest."""

ACROSS, SIDE = 100, 32
"""Images beside each other on a sheet, and their pixels."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def pack(names: list[str]) -> None:
    """Pack data sets for as many calls as they take."""
    calls, full = 1, 0
    for file in (f.path for name in names for f in SOURCES[name].files):
        packed = packed_file(root() / file)
        size = sum(map(len, packed.values()))
        calls, full = (calls, full + size) if full + size <= ROOM else (calls + 1, size)
        for ending, content in packed.items():
            path = HERE / "calls" / str(calls) / f"{file}{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for call in range(1, calls + 1):
        folder = HERE / "calls" / str(call)
        typer.echo(f"carry {folder}, run: PYTHONPATH=src python experiments/gpu_session.py run {folder} $OUT")


@app.command()
def run(
    folder: Path, out: Path, minutes: float = 9.3, only: str = "", jobs: int | None = None, beside: int = 1
) -> None:
    """Unpack a call's data, and make what is missing of ORDER until time is up, so many lines beside each other.

    `only` lines that this expression finds. Runs of a line go on together unless told; what it says goes to its log.
    """
    start = monotonic()
    end = start + 60 * minutes
    os.environ["FEDSTRATA_DATA"] = str((HERE / "unpacked").resolve())
    unpack(folder, HERE / "unpacked")
    means = ["--device", "cuda", "--precision", "tf32", *([] if jobs is None else ["--jobs", str(jobs)])]
    todo: list[str] = []
    going: list[Popen[bytes]] = []
    for line in (words for words in ORDER.strip().splitlines() if re.search(only, words)):
        if lacking := lacking_data(line):
            typer.echo(f"{line}: waits for {', '.join(lacking)}")
        else:
            todo.append(line)
    while (todo or going) and monotonic() < end - 20:
        while todo and len(going) < beside:
            typer.echo(f"{monotonic() - start:.0f} s: {todo[0]}")
            going.append(begun(todo.pop(0), means))
        if ended := [p for p in going if p.poll() is not None]:
            going = [p for p in going if p not in ended]
            merge(HERE / "results", out)
        sleep(0.2)
    for process in going:
        process.terminate()
    for process in going:
        process.wait()
    merge(HERE / "results", out)


@app.command()
def gather(folder: Path) -> None:
    """Add what came back to experiments/NAME/results.jsonl, each line once."""
    for new in sorted(folder.glob("*.jsonl")):
        file = plan.root() / new.stem / "results.jsonl"
        there = set(file.read_text().splitlines()) if file.exists() else set()
        lines = [line for line in new.read_text().splitlines() if line not in there]
        with file.open("a") as f:
            f.writelines(f"{line}\n" for line in lines)
        typer.echo(f"{new.stem}: {len(lines)} more runs")


def packed_file(path: Path) -> dict[str, bytes]:
    """What a published file becomes on its way, by ending: photographs as sheets, texts compressed."""
    if path.suffix == ".bin":
        records = np.fromfile(path, np.uint8).reshape(-1, 1 + 3 * SIDE**2)
        images = records[:, 1:].reshape(-1, ACROSS, 3, SIDE, SIDE).transpose(0, 3, 1, 4, 2)
        return {".webp": _as_webp(images.reshape(-1, ACROSS * SIDE, 3)), ".labels": records[:, 0].tobytes()}
    content = path.read_bytes()
    return {"": content} if path.suffix == ".gz" else {".xz": lzma.compress(content, preset=1)}


def unpack(folder: Path, to: Path) -> None:
    """Bring a call's files back to what was published."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".labels"):
        same = path.suffix not in (".webp", ".xz")
        target = to / path.relative_to(folder) if same else (to / path.relative_to(folder)).with_suffix("")
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".webp":
            labels = np.frombuffer(path.with_suffix(".labels").read_bytes(), np.uint8)
            images = _of_webp(path).reshape(-1, SIDE, ACROSS, SIDE, 3).transpose(0, 2, 4, 1, 3)
            np.concatenate([labels[:, None], images.reshape(len(labels), -1)], 1).tofile(target)
        else:
            target.write_bytes(path.read_bytes() if same else lzma.decompress(path.read_bytes()))


def lacking_data(line: str) -> list[str]:
    """Data sets of a line of ORDER that are not there."""
    used = {str(c.settings["data"]).partition("(")[0] for c in read(line.split()[0]).cells}
    return sorted(name for name in used if name in SOURCES and missing(SOURCES[name]))


def begun(line: str, means: list[str]) -> Popen[bytes]:
    """A process that makes a line; when it is told to stop, it keeps what it has."""
    place = HERE / "results" / "-".join(re.findall(r"[\w.]+", line))
    place.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fedstrata", "reproduce", *shlex.split(line), *means, "--results", str(place)]
    with (place / "log").open("ab") as log:
        return Popen(command, stdout=log, stderr=log)


def merge(results: Path, out: Path) -> None:
    """The results of all lines, a file for each table."""
    for name in {f.name for f in results.glob("*/*.jsonl")}:
        found = [line for f in sorted(results.glob(f"*/{name}")) for line in f.read_text().splitlines()]
        (out / name).write_text("".join(f"{line}\n" for line in found))


def _as_webp(sheet: np.ndarray) -> bytes:
    from PIL import Image

    file = BytesIO()
    Image.fromarray(np.ascontiguousarray(sheet)).save(file, "webp", lossless=True)
    return file.getvalue()


def _of_webp(path: Path) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(path).convert("RGB"))


if __name__ == "__main__":
    app()
