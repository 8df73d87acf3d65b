"""What came out of quick versions: kept apart, told on the page, and as the tables are today."""

import pytest

from fedstrata.reproduce import find, judge, read, reproduce, results_of
from fedstrata.reproduce.pages import page
from fedstrata.reproduce.plan import wanted_columns
from fedstrata.reproduce.quick import FILE, in_words, keep, seen, shortly
from fedstrata.reproduce.results import results_file

TABLE = """
title = "two methods"
place = "A paper, Table 1"
metric = "last"
seeds = 2
target = 0.9
[experiment]
rounds = 2
model = "logreg"
training = { lr = 0.1, epochs = 1 }
partition = { clients = 3 }
[quick]
rounds = 1
seeds = 1
target = 0.2
[rows]
"FedAvg" = { method = "fedavg", published = [90] }
"standing still" = { method = "fedavg", training.lr = 1e-9 }
[[claims]]
says = "FedAvg learns"
row = "FedAvg"
over = "standing still"
[[claims]]
says = "standing still is better"
row = "standing still"
over = "FedAvg"
[[claims]]
says = "FedAvg has 90 %"
row = "FedAvg"
within = 1.0
"""

RUNNABLE = [name for name in find() if read(name).missing is None]


def test_directions_are_told_on_the_page_and_no_digits(where):
    assert "Not run as it is now." in page(where)
    keep("table", where)
    said = in_words(*seen("table", where))
    assert "`fedstrata reproduce table --scale quick`; 2 runs of 1 rounds, " in said
    assert "- held: FedAvg learns (+" in said
    assert "- *did not hold*: standing still is better (-" in said
    assert "90 %" not in said
    assert shortly(*seen("table", where)).startswith("1 of 2 held, ")
    assert said in page(where)
    assert "| 0 of 4 | 3 not run | 1 of 2 held, " in page(where)  # full results are others


def test_they_are_kept_apart_and_run_afresh(where):
    quick = read("table", "quick", where)
    reproduce(quick)
    before = results_of(quick)
    assert len(before) == 2
    keep("table", where)
    keep("table", where)
    assert len((where / "table" / FILE).read_text().splitlines()) == 2
    assert results_of(read("table", where=where)) == []
    results_file(quick).unlink()
    assert results_of(quick) == []  # what is kept does not stand in for a run


def test_a_check_does_not_count_what_was_run_elsewhere(where):
    quick = read("table", "quick", where)
    reproduce(quick)
    assert results_of(quick, where / "elsewhere" / "results.jsonl") == []


def test_what_is_kept_of_other_settings_does_not_count(where):
    keep("table", where)
    (where / "table" / "reproduction.toml").write_text(TABLE.replace("lr = 0.1", "lr = 0.2"))
    assert shortly(*seen("table", where)) == "not run"


def test_the_quick_scale_may_have_a_target_of_its_own(where):
    assert (read("table", where=where).target, read("table", "quick", where).target) == (0.9, 0.2)


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_quick_version_of_ours_checks_a_direction(name):
    quick = read(name, "quick")
    claims = {f.claim for f in judge(quick, [])}
    rows = [{c.row, c.over or c.row, c.like or c.row, c.follows or c.row} for c in claims if wanted_columns(c, quick)]
    assert any(mine <= set(quick.rows) for mine in rows)


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_quick_version_of_ours_was_run_as_it_is_in_less_than_four_minutes_of_a_core(name):
    quick, found = seen(name)
    assert {(r.row, r.column, r.seed) for r in found} == {
        (c.row, c.column, seed) for c in quick.cells for seed in range(quick.seeds)
    }, f"run python -m fedstrata.reproduce.quick {name}"
    assert sum({(r.fingerprint, r.seed): r.made["seconds"] for r in found}.values()) < 240
