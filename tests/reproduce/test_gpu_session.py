"""Data that travels in pieces to a lent machine, and results that come back."""

import gzip
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments import gpu_session
from fedstrata.data.sources import SOURCES
from fedstrata.reproduce import find, read
from fedstrata.reproduce.plan import picked

LINES = [line.strip() for line in gpu_session.ORDER.strip().splitlines()]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files under the published names of two data sets, with little in them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "published"))
    draw = np.random.default_rng(0)
    for file in (f.path for name in ("cifar10", "uci_har", "mnist") for f in SOURCES[name].files):
        path = tmp_path / "published" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        content = draw.integers(0, 256, 200 * 3073 if path.suffix == ".bin" else 1000, np.uint8).tobytes()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return tmp_path


def call(*words: str) -> str:
    done = CliRunner().invoke(gpu_session.app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_data_arrives_as_it_was_published_in_calls_of_bounded_size(data, monkeypatch):
    monkeypatch.setattr(gpu_session, "ROOM", 1_500_000)
    said = call("pack", "cifar10", "uci_har", "mnist")
    calls = sorted((data / ".data" / "calls").iterdir())
    assert len(calls) == len(said.splitlines()) == 3  # of images that are noise, two to a call
    for folder in calls:
        assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) <= 1_500_000
        gpu_session.unpack(folder, data / "there")
    sent = {p.relative_to(data / "published"): p.read_bytes() for p in (data / "published").rglob("*") if p.is_file()}
    assert sent == {p.relative_to(data / "there"): p.read_bytes() for p in (data / "there").rglob("*") if p.is_file()}


def test_a_call_runs_what_its_data_suffice_for_and_keeps_the_results(data, monkeypatch):
    """Each line is a process, two at a time; one that goes on when time is up is told to stop."""
    out, made, going = data / "out", [], []
    lines = ["fedpbs-uci-har --rows FedBS", "fedlws-table1-fashion", "fedlws-table11", "fedpbs-uci-har --rows MOON"]
    monkeypatch.setattr(gpu_session, "ORDER", "\n".join(lines))

    class Process:
        def __init__(self, command: list[str], **_: object):
            self.code: int | None = None
            going.append(self)
            assert sum(p.code is None for p in going) <= 2
            made.append(" ".join(command[command.index("reproduce") + 1 : command.index("--device")]))
            self.results = Path(command[command.index("--results") + 1])
            if made[-1] != lines[2]:
                (self.results / f"{made[-1].split()[0]}.jsonl").write_text(f'{{"row":"{made[-1]}"}}\n')

        def poll(self) -> int | None:
            self.code = None if str(self.results).endswith("table11") else 0
            return self.code

        def terminate(self) -> None:
            (self.results / "fedlws-table11.jsonl").write_text('{"stopped":1}\n')

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(gpu_session, "Popen", Process)
    call("pack", "uci_har", "cifar10")
    out.mkdir()
    said = call("run", ".data/calls/1", str(out), "--beside", "2", "--minutes", "0.36")
    assert "fedlws-table1-fashion: waits for fashion_mnist" in said
    assert made == [lines[0], lines[2], lines[3]]
    assert (out / "fedlws-table11.jsonl").read_text() == '{"stopped":1}\n'
    assert (out / "fedpbs-uci-har.jsonl").read_text() == "".join(f'{{"row":"{lines[i]}"}}\n' for i in (0, 3))
    call("run", ".data/calls/1", str(out), "--minutes", "0.1")
    assert len(made) == 3  # there is no time for more


def test_what_came_back_is_added_once(data, monkeypatch):
    monkeypatch.setattr("fedstrata.reproduce.plan.root", lambda: data)
    (data / "back").mkdir()
    (data / "table").mkdir()
    (data / "table" / "results.jsonl").write_text('{"seed":0}\n')
    (data / "back" / "table.jsonl").write_text('{"seed":0}\n{"seed":1}\n')
    assert "table: 1 more runs" in call("gather", "back")
    call("gather", "back")
    assert (data / "table" / "results.jsonl").read_text() == '{"seed":0}\n{"seed":1}\n'


@pytest.mark.parametrize("line", LINES)
def test_every_line_of_the_order_names_a_table_and_its_columns(line):
    name, *options = shlex.split(line)
    assert name in find()
    said = list(zip(options[::2], options[1::2], strict=True))
    assert {o for o, _ in said} <= {"--columns", "--rows", "--seeds"}
    table = read(name)
    for names, option in ((table.columns, "--columns"), (table.rows, "--rows")):
        assert all(picked(names, [w]) for o, w in said if o == option)
