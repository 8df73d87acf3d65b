"""What a table lacks, as commands."""

from pathlib import Path

from fedstrata.reproduce.missing import in_words, lacking
from fedstrata.reproduce.plan import Cell, Reproduction, picked
from fedstrata.reproduce.results import Result


def cell(row: str, column: str, metric: str | None = None) -> Cell:
    settings = {"method": "fedavg" if row == "A" else "fedprox", "partition": {"alpha": float(column)}}
    return Cell(row, (column,), settings, None, metric)


CELLS = tuple(cell(row, column) for column in ("0.1", "1", "10") for row in ("A", "B"))
TABLE = Reproduction("t", Path(), "title", "place", "last", 2, CELLS, hardware="gpu")
START = "fedstrata reproduce t --device cuda --precision tf32"


def ran(*which: tuple[str, str, int]) -> list[Result]:
    return [Result(row, column, seed, "full", "f", 1) for row, column, seed in which]


def test_all_of_it():
    assert lacking(TABLE, []) == [(12, START)]


def test_columns_that_lack_the_same_rows_are_one_command():
    found = lacking(TABLE, ran(("A", "0.1", 0), ("A", "0.1", 1), ("B", "10", 0)))
    assert found == [
        (2, f'{START} --rows "B" --columns "0.1"'),
        (7, f'{START} --columns "1" --columns "10"'),
    ]


def test_nothing():
    every = ran(*((c.row, c.column, seed) for c in CELLS for seed in (0, 1)))
    assert lacking(TABLE, every) == []
    assert in_words(TABLE, every) == ""
    assert in_words(TABLE, every[1:]) == f'Missing:\n\n- 1 run: `{START} --rows "A" --columns "0.1"`'


def test_rows_that_share_a_run_lack_it_once():
    cells = (*CELLS[:2], cell("A", "0.1", "values:x"))
    table = Reproduction("t", Path(), "title", "place", "last", 2, cells)
    assert lacking(table, []) == [(4, "fedstrata reproduce t")]


def test_a_name_given_exactly_picks_only_itself():
    assert picked(["FedPBS", "FedPBS, sat", "MOON"], ["FedPBS"]) == ["FedPBS"]
    assert picked(["1, SGD", "0.1, SGD"], ["1, SGD"]) == ["1, SGD"]
    assert picked(["1, SGD", "0.1, SGD", "1, Adam"], ["SGD"]) == ["1, SGD", "0.1, SGD"]
    assert picked(["a", "b"], []) == ["a", "b"]
