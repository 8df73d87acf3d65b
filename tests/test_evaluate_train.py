"""The clients' own data may be left out of the evaluation; then something else is there to evaluate on."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

import fedstrata as fs
from fedstrata.cli import main
from fedstrata.console import Watcher
from fedstrata.errors import DataError, SettingError
from fedstrata.record import read_rounds
from fedstrata.report import draw_curves, runs_table
from fedstrata.simulate import Run
from tests.federations import mlp, unequal_clients


def run(**settings: Any) -> Run:
    clients = unequal_clients()
    given = {"rounds": 3, "evaluate_train": False, "test": (clients.x[:9], clients.y[:9])} | settings
    return fs.simulate(given.pop("recipe", "fedavg"), mlp(), clients, **given)


def text(table: Table) -> str:
    console = Console(width=120)
    with console.capture() as said:
        console.print(table)
    return said.get()


@pytest.mark.parametrize("engine", ["stacked", "pool", "apart"])
def test_the_clients_data_is_not_looked_at(engine: str):
    quick, whole = run(engine=engine), run(engine=engine, evaluate_train=True)
    for line in quick.rounds:
        assert line.keys() == {"round", "cohort", "dropped", "test", "seconds"}
    assert quick.final["test"] == whole.final["test"]
    assert whole.final.keys() - quick.final.keys() == {"train", "clients"}


def test_the_last_round_that_was_evaluated_is_found():
    clients = unequal_clients()
    val = clients.x[:5], clients.y[:5]
    assert run(evaluate_every=2).final["round"] == 2  # the last one is always evaluated
    assert run(val=val, test=None).final.keys() >= {"round", "val"}
    assert "finish" in run(recipe="ccvr").final
    assert [("test" in r) for r in run(evaluate_every=2).rounds] == [False, True, True]


def test_nothing_to_evaluate_on_is_a_sentence_before_anything_runs(tmp_path: Path):
    for engine in ("stacked", "pool", "apart"):
        with pytest.raises(SettingError, match="evaluate_train = false leaves nothing to evaluate on: give a test or"):
            run(test=None, out=tmp_path / "run", engine=engine)
    assert not (tmp_path / "run").exists()


def test_tables_have_a_cell_for_what_each_run_has():
    quick, whole = run().final, run(evaluate_train=True).final
    alone = text(runs_table({"quick": quick}))
    assert "test loss" in alone
    assert "train" not in alone
    for finals in ({"quick": quick, "whole": whole}, {"whole": whole, "quick": quick}):
        lines = text(runs_table(finals)).splitlines()
        head = next(x for x in lines if "method" in x)
        rows = {n: next(x for x in lines if x.strip().startswith(n)) for n in finals}
        for column in ("test", "train", "worst 10 %", "test loss"):
            assert column in head
        assert rows["whole"].split()[-1] == rows["quick"].split()[-1] == f"{quick['test']['loss']:.4f}"
        assert rows["whole"].count("%") == 5
        assert rows["quick"].count("%") == 1
        end = head.index("test loss") + len("test loss")
        assert len(rows["quick"].rstrip()) == len(rows["whole"].rstrip()) == end


def test_curves_are_drawn_of_what_there_is(tmp_path: Path):
    clients = unequal_clients()
    val = clients.x[:5], clients.y[:5]
    some = {
        "test.png": {"a": run().rounds, "b": run(evaluate_train=True, evaluate_every=2).rounds},
        "val.png": {"a": run(val=val, test=None).rounds},
        "train.png": {"a": run(evaluate_train=True).rounds, "b": run(test=None, evaluate_train=True).rounds},
    }
    for name, runs in some.items():
        assert draw_curves(runs, tmp_path / name).stat().st_size > 1000
    with pytest.raises(DataError, match="no set in common"):
        draw_curves({"a": run().rounds, "b": run(test=None, evaluate_train=True).rounds}, tmp_path / "none.png")


def test_progress_tells_of_the_set_that_there_is():
    clients = unequal_clients()
    for given in ({}, {"test": None, "val": (clients.x[:5], clients.y[:5])}):
        console = Console(width=120, force_terminal=False)
        with Watcher(console, {"a": 3}) as watcher:
            run(on_round=watcher.of("a"), **given)
            assert "accuracy" in watcher.progress.tasks[0].fields["told"]


def test_the_command_leaves_it_out_too_and_its_record_can_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    quick = "--rounds 2 --set training.epochs=1 --set evaluate_train=false --json"
    for args in (f"run --out a {quick}", "run a/experiment.toml --out b --json"):
        with pytest.raises(SystemExit) as stop:
            main([*args.split()])
        assert not stop.value.code
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert told["test"]["accuracy"] > 0
        assert not told.keys() & {"train", "clients"}
    for folder in ("a", "b"):
        assert all("test" in r and "train" not in r for r in read_rounds(folder))
