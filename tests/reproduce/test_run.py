"""Tables that are made again, on embedded data."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedstrata.errors import DataError, NeedError, SettingError
from fedstrata.reproduce import read, reproduce, results_of
from fedstrata.reproduce.figure import draw
from fedstrata.reproduce.pages import section

TABLE = """
title = "two methods"
place = "A paper, Table 1"
metric = "last"
seeds = 2
[experiment]
rounds = 2
model = "logreg"
training = { lr = 0.1, epochs = 1 }
partition = { clients = 3 }
[axes.skew]
"strong" = { partition.alpha = 0.1 }
"weak" = { partition.alpha = 10.0 }
[rows]
"FedAvg" = { method = "fedavg", published = [80, 90] }
"FedLWS" = { method = "fedlws" }
[[claims]]
says = "FedLWS is better"
row = "FedLWS"
over = "FedAvg"
"""


def run(where: Path, name: str = "table", **how) -> list[int]:
    counts: list[int] = []
    reproduce(read(name, where=where), runs=where / "runs", jobs=1, begin=counts.append, **how)
    return counts


def test_what_is_missing_is_run_and_no_more(where):
    assert run(where, rows=["FedAvg"], columns=["strong"]) == [2]
    assert run(where, columns=["strong"]) == [2]
    assert run(where, columns=["strong"]) == [0]
    found = results_of(read("table", where=where))
    assert {(r.row, r.column, r.seed) for r in found} == {
        (m, "strong", s) for m in ("FedAvg", "FedLWS") for s in (0, 1)
    }
    assert all(len(r.curves["test"]) == 2 and r.made["on"] for r in found)


def test_results_of_other_settings_do_not_count(where):
    run(where, columns=["strong"])
    (where / "table" / "reproduction.toml").write_text(TABLE.replace("rounds = 2", "rounds = 1"))
    assert results_of(read("table", where=where)) == []


def test_a_run_that_another_table_made_counts(where):
    run(where, rows=["FedAvg"])
    (where / "other").mkdir()
    other = TABLE.replace('"FedAvg"', '"the same by another name"')
    (where / "other" / "reproduction.toml").write_text(other)
    assert {r.row for r in results_of(read("other", where=where))} == {"the same by another name"}
    assert run(where, "other", rows=["same"]) == [0]


def test_what_is_taken_from_notes_is_kept_with_the_curves(where):
    text = TABLE.replace("[axes.skew]", '[extract.gamma]\nnote = "gamma"\n[axes.skew]')
    (where / "table" / "reproduction.toml").write_text(text)
    run(where, rows=["FedLWS"], columns=["weak"], seeds=1)
    (found,) = results_of(read("table", where=where))
    assert len(found.values["gamma"]) == 2
    assert all(0 < g <= 1 for g in found.values["gamma"])


def test_a_line_that_is_no_result_is_named(where):
    (where / "table" / "results.jsonl").write_text('{"row": 1}\n')
    with pytest.raises(DataError, match=r"results\.jsonl, line 1"):
        results_of(read("table", where=where))


def test_a_table_without_its_data_or_rows_says_so(where, monkeypatch):
    with pytest.raises(SettingError, match="its rows are FedAvg, FedLWS"):
        run(where, rows=["SCAFFOLD"])
    text = 'missing = "there is no data"\n' + TABLE
    (where / "table" / "reproduction.toml").write_text(text.replace("rounds = 2", 'rounds = 2\ndata = "cifar100"'))
    monkeypatch.setenv("FEDSTRATA_DATA", str(where))
    with pytest.raises(NeedError, match="table cannot be run: there is no data"):
        run(where)
    (where / "table" / "reproduction.toml").write_text(text)
    assert run(where, rows=["FedAvg"], columns=["strong"], seeds=1) == [1]  # whoever has it runs it
    made = read("table", where=where)
    assert "| 80 / " in section(made, results_of(made))


def test_the_section_and_the_figure_tell_what_was_found(where):
    run(where, columns=["strong"])
    made = read("table", where=where)
    found = results_of(made)
    said = section(made, found)
    assert "4 of 8 runs, each 2 rounds on" in said
    assert "80 / " in said
    assert "| FedLWS is better | weak |  |  | not run |" in said
    assert draw(made, found, where / "x.png") == where / "x.png"
    assert (where / "x.png").stat().st_size > 5000
    assert draw(made, [], where / "y.png") is None


def test_the_command_lists_and_runs(where, monkeypatch):
    from fedstrata.cli import app

    monkeypatch.setattr("fedstrata.reproduce.plan.root", lambda: where)
    listed = CliRunner().invoke(app, ["reproduce", "list"])
    assert listed.exit_code == 0
    assert "0 of 8" in listed.output
    runs, results = where / "runs", where / "results"
    options = ["--columns", "weak", "--seeds", "1", "--jobs", "1", "--runs", str(runs), "--results", str(results)]
    made = CliRunner().invoke(app, ["reproduce", "table", *options])
    assert made.exit_code == 0, made.output
    lines = [json.loads(line) for line in (results / "table.jsonl").read_text().splitlines()]
    assert [(r["row"], r["seed"]) for r in lines] == [("FedAvg", 0), ("FedLWS", 0)]
    assert not (where / "table" / "results.jsonl").exists()
    shutil.rmtree(runs)
    assert "verdict" in CliRunner().invoke(app, ["reproduce", "table", *options]).output
