"""Published tables as experiments: what a folder says, and what it gets wrong."""

import pytest

from fedstrata.errors import SettingError
from fedstrata.partition import Dirichlet
from fedstrata.parts import Sample
from fedstrata.reproduce import find, read
from fedstrata.reproduce.metrics import measure

TABLE = """
title = "two methods"
place = "A paper, Table 1"
metric = "last"
seeds = 2
[experiment]
rounds = 3
model = "logreg"
training = { lr = 0.1, epochs = 1 }
[quick]
rounds = 1
seeds = 1
rows = ["FedAvg"]
columns = ["3 clients"]
[axes.clients]
"2 clients" = { partition.clients = 2 }
"3 clients" = { partition.clients = 3, plus = "Sample(k=2)" }
[axes.skew]
"strong" = { partition.alpha = 0.1 }
"weak" = { partition.alpha = 10.0 }
[rows]
"FedAvg" = { method = "fedavg", published = { "2 clients, strong" = 50.5, "3 clients" = nan } }
"FedProx" = { method = "fedprox", columns = ["2 clients"], published = [60, 70] }
[[claims]]
says = "FedProx is better"
row = "FedProx"
over = "FedAvg"
"""


def test_every_row_has_a_cell_in_every_column_unless_it_says_in_which(where):
    made = read("table", where=where)
    assert made.columns == ["2 clients, strong", "2 clients, weak", "3 clients, strong", "3 clients, weak"]
    assert [c.row for c in made.cells].count("FedAvg") == 4
    assert [c.column for c in made.cells if c.row == "FedProx"] == ["2 clients, strong", "2 clients, weak"]


def test_a_cell_is_the_experiment_with_what_its_column_and_row_change(where):
    cell = read("table", where=where).cells[-1]
    exp = cell.experiment(seed=7)
    assert (exp.seed, exp.rounds) == (7, 3)
    assert exp.partition == Dirichlet(clients=3, alpha=10.0)
    assert exp.recipe.select == Sample(k=2)


def test_published_numbers_are_found_by_label_or_by_place(where):
    numbers = {(c.row, c.column): c.published for c in read("table", where=where).cells}
    assert numbers["FedAvg", "2 clients, strong"] == 50.5
    assert numbers["FedAvg", "2 clients, weak"] is None
    assert numbers["FedAvg", "3 clients, weak"] is None  # NaN is none
    assert numbers["FedProx", "2 clients, weak"] == 70


def test_the_quick_scale_has_fewer_cells_rounds_and_seeds(where):
    quick = read("table", "quick", where)
    assert (quick.seeds, quick.rows, quick.columns) == (1, ["FedAvg"], ["3 clients, strong", "3 clients, weak"])
    assert quick.cells[0].experiment(0).rounds == 1


def test_the_fingerprint_says_what_comes_out_and_not_by_what_means(where):
    first, second, *_ = read("table", where=where).cells
    again = read("table", where=where).cells[0]
    assert first.fingerprint == again.fingerprint != second.fingerprint
    text = TABLE.replace("rounds = 3", 'rounds = 3\ndevice = "cuda"\nengine = "stacked"')
    (where / "table" / "reproduction.toml").write_text(text)
    assert read("table", where=where).cells[0].fingerprint == first.fingerprint
    (where / "table" / "reproduction.toml").write_text(TABLE.replace("rounds = 3", "rounds = 4"))
    assert read("table", where=where).cells[0].fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('over = "FedAvg"', 'over = "FedAvgg"', "speaks of a row 'FedAvgg'; did you mean 'FedAvg'"),
        ('says = "FedProx is better"', 'says = "x"\nthan = "y"', "a claim has no 'than'"),
        (
            'metric = "last"',
            'metric = "last"\nmetrik = 1',
            "no setting 'metrik' .* did you mean 'metric'",
        ),
    ],
)
def test_a_slip_is_one_sentence_with_the_files_name(where, old, new, words):
    (where / "table" / "reproduction.toml").write_text(TABLE.replace(old, new))
    with pytest.raises(SettingError, match=words) as error:
        read("table", where=where)
    assert "reproduction.toml" in str(error.value)


def test_an_unknown_name_or_scale_is_refused(where):
    with pytest.raises(SettingError, match="no reproduction 'tabel'; did you mean 'table'"):
        read("tabel", where=where)
    with pytest.raises(SettingError, match="full, quick; got 'large'"):
        read("table", "large", where)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", find())
def test_every_reproduction_of_ours_reads_at_both_scales(name):
    full, quick = read(name), read(name, "quick")
    assert full.claims
    assert {c.row for c in quick.cells} <= set(full.rows)
    distinct = {(c.fingerprint, full.metric_of(c.row)) for c in full.cells}
    assert len(distinct) == len(full.cells), "two cells are the same number of the same experiment"
    for made in (full, quick):
        for cell in made.cells[:: max(1, len(made.cells) // 8)]:
            cell.experiment(0)
        assert made.kind != "runs" or measure(made.metric, {"test": [0.5, 0.6]}, {}, made.target) or made.extract
