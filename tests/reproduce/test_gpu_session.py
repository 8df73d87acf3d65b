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
    out, made = data / "out", []
    monkeypatch.setattr(gpu_session, "ORDER", "fedpbs-uci-har --seeds 1\nfedlws-table1-fashion\nfedlws-table11\n")

    def reproduced(line: str, means: list[str], seconds: float) -> None:
        made.append(line.split()[0])
        assert (out / "fedlws-table11.jsonl").exists() == (len(made) > 2)
        (out / f"{made[-1]}.jsonl").write_text('{"seed":0}\n')
        (out / f"{made[-1]}.png").touch()

    monkeypatch.setattr(gpu_session, "reproduced", reproduced)
    call("pack", "uci_har", "cifar10")
    for _ in range(2):
        for file in out.glob("*"):
            file.unlink()
        out.mkdir(exist_ok=True)
        said = call("run", ".data/calls/1", str(out))
        assert "fedlws-table1-fashion: waits for fashion_mnist" in said
    assert made == 2 * ["fedpbs-uci-har", "fedlws-table11"]
    assert sorted(p.name for p in out.iterdir()) == ["fedlws-table11.jsonl", "fedpbs-uci-har.jsonl"]
    assert made[:2] == ["fedpbs-uci-har", "fedlws-table11"]
    call("run", ".data/calls/1", str(out), "--minutes", "0.1")
    assert len(made) == 4  # there is no time for more


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
    columns = [w for o, w in zip(options[::2], options[1::2], strict=True) if o == "--columns"]
    assert set(options[::2]) <= {"--columns", "--seeds"}
    assert picked(read(name).columns, columns)
