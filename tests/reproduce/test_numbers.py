"""Numbers that are no accuracies: from notes and weights of runs, or measured without any."""

from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest

from fedstrata.errors import DataError
from fedstrata.lab.stats import interval
from fedstrata.reproduce import BestShrink, judge, read, reproduce, results_of
from fedstrata.reproduce.best import least
from fedstrata.reproduce.distances import compared, data_distances, dealt
from fedstrata.reproduce.extract import extracted
from fedstrata.reproduce.figure import draw
from fedstrata.reproduce.plan import Claim
from fedstrata.reproduce.verdict import Finding
from fedstrata.reproduce.words import caption, findings_table
from fedstrata.testing import check_part

HEAD = """
title = "numbers"
place = "A paper, Table 1"
metric = "values:gamma"
seeds = 1
[experiment]
rounds = 3
model = "mlp"
method = "fedavg + lws"
partition = { clients = 6 }
training = { lr = 0.1, epochs = 1 }
"""


def made(tmp_path: Path, text: str, head: str = HEAD) -> tuple:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "reproduction.toml").write_text(head + text)
    table = read("table", where=tmp_path)
    counts: list[int] = []
    reproduce(table, runs=tmp_path / "runs", jobs=1, begin=counts.append)
    return table, results_of(table), counts


def test_rows_may_be_numbers_of_the_same_run_which_is_made_once(tmp_path):
    text = """
[extract]
gamma = { note = "gamma" }
last = { note = "gamma", layers = ["5"] }
spread = { note = "gamma", of = "std", rounds = "late" }
small = { weights = "share", within = 0.01 }
bins = { weights = "histogram", within = 10.0, bins = 4 }
none = { note = "weights", layers = ["nowhere"] }
[rows]
"all" = {}
"last" = { metric = "values:last" }
"small" = { metric = "values:small" }
[[claims]]
says = "all is above the last"
row = "all"
above = 0.5
[[panels]]
kind = "rounds"
lines = { "mean" = ["all", "gamma"] }
[[panels]]
kind = "histogram"
within = 10.0
lines = { "weights" = ["all", "bins"] }
"""
    table, found, counts = made(tmp_path, text)
    assert counts == [1]
    assert {r.row for r in found} == {"all", "last", "small"}
    values = found[0].values
    assert (len(values["gamma"]), len(values["spread"]), values.keys() & {"none"}) == (3, 1, set())
    assert 0 < values["small"][0] < 1
    assert len(values["bins"]) == 4
    assert judge(table, found)[0].verdict == "direction reproduced"
    assert draw(table, found, tmp_path / "x.png") == tmp_path / "x.png"


def test_a_run_with_nothing_that_is_wanted_says_what_it_has(tmp_path):
    made(tmp_path, '[rows]\n"all" = {}\n', HEAD.replace("values:gamma", "last"))
    (folder,) = (tmp_path / "runs").rglob("seed-0")
    with pytest.raises(DataError, match=r"its notes are .*gamma.*, of the layers 1, 3, 5"):
        extracted(folder, {"x": {"note": "gamma", "layers": ["conv*"]}})


def test_the_best_factor_is_where_the_loss_is_least():
    assert least(lambda g: (g - 0.8) ** 2, 0.5, 1.0, 25) == pytest.approx(0.8, abs=1e-4)
    assert least(lambda g: -g, 0.5, 1.0, 5) == 1.0
    check_part(BestShrink(tries=3))


def test_the_ratio_follows_from_the_best_factor(tmp_path, monkeypatch):
    text = """
[extract]
gamma = { note = "gamma" }
ratio = { note = "ratio" }
tau = { note = "tau" }
[axes.alpha]
"a" = { partition.alpha = 0.1 }
"b" = { partition.alpha = 1.0 }
"c" = { partition.alpha = 10.0 }
[rows]
"r" = { metric = "values:ratio" }
"tau" = { metric = "values:tau" }
[[claims]]
says = "r follows tau"
row = "r"
follows = "tau"
published = 0.86
[[panels]]
kind = "columns"
rows = ["r", "tau"]
"""
    head = HEAD.replace("+ lws", "+ BestShrink(tries=6)").replace("rounds = 3", "rounds = 3\nproxy = 100")
    head = head.replace("lr = 0.1, epochs = 1", "lr = 0.5, epochs = 20")  # too sure of itself: shrinking helps
    table, found, counts = made(tmp_path, text, head)
    assert counts == [3]
    assert all((g == 1) == (r == 0) for f in found for g, r in zip(f.values["gamma"], f.values["ratio"], strict=True))
    (finding,) = judge(table, found)
    both = [[np.mean(f.values[n]) for f in found if f.row == "r"] for n in ("ratio", "tau")]
    assert finding.ours is not None
    assert finding.ours.mean == pytest.approx(np.corrcoef(both)[0, 1])
    assert finding.published == 0.86
    assert judge(table, found[:2])[0].verdict == "not run"  # two columns say nothing
    assert draw(table, found, tmp_path / "x.png") is not None
    assert caption(table) == "Ours (seeds)."  # its rows are of different kinds, and say which
    assert caption(table, "best") == "Ours (seeds): accuracy of the best round, %."
    long = replace(table, title="a title, " * 20)
    assert _is_inside(monkeypatch, lambda: draw(long, found, tmp_path / "x.png"))


@pytest.mark.parametrize(
    ("number", "said"),
    [(-0.004, "-0.004"), (-3e-15, "+0.00"), (6e-5, "+0.00006"), (-0.0149, "-0.01"), (1.236, "+1.24")],
)
def test_small_differences_keep_a_digit(number, said):
    claim = Claim("a helps", "a", over="b")
    finding = Finding(claim, "", "not reproduced", interval([number, number]), None, 2)
    assert f"| {said} ± 0.00 (2) |" in findings_table([finding])


def _is_inside(monkeypatch, run):
    """Whether all titles of the picture that this draws are within it."""
    from matplotlib.figure import Figure

    inside: list[bool] = []
    save = Figure.savefig

    def saved(figure: Figure, *args: Any, **how: Any) -> None:
        save(figure, *args, **how)
        boxes = [axis.title.get_window_extent() for axis in figure.axes]
        inside.extend(figure.bbox.x0 <= b.x0 and b.x1 <= figure.bbox.x1 for b in boxes)

    monkeypatch.setattr(Figure, "savefig", saved)
    run()
    return bool(inside) and all(inside)


def test_times_of_aggregation_are_told_beside_the_first_row(tmp_path):
    rows = '[rows]\n"FedAvg" = { method = "fedavg" }\n"FedLAW" = { method = "fedlaw(epochs=40)" }\n'
    head = HEAD.replace("values:gamma", "values:ratio").replace("seeds = 1", 'seeds = 1\nkind = "aggregation"')
    table, found, _ = made(tmp_path, rows, head.replace('method = "fedavg + lws"\n', ""))
    assert [r.row for r in found] == ["FedAvg", "FedLAW"]
    assert found[0].values["ratio"] == 1
    assert found[1].values["ratio"] == pytest.approx(found[1].values["seconds"] / found[0].values["seconds"])
    assert found[1].values["ratio"] > 1
    reproduce(replace(table), runs=tmp_path / "runs")
    assert len((tmp_path / "table" / "results.jsonl").read_text().splitlines()) == 2


def test_a_clock_that_ticks_slowly_gives_times_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr("fedstrata.reproduce.aggregation.process_time", lambda: round(process_time(), 2))
    rows = '[rows]\n"FedAvg" = { method = "fedavg" }\n"FedLWS" = { method = "fedlws" }\n'
    head = HEAD.replace("values:gamma", "values:ratio").replace("seeds = 1", 'seeds = 1\nkind = "aggregation"')
    _, found, _ = made(tmp_path, rows, head.replace('method = "fedavg + lws"\n', ""))
    assert all(0 < r.values["seconds"] < 0.02 for r in found)


def test_clients_have_the_first_classes_the_others_or_all_and_as_many_examples():
    labels = np.repeat(np.arange(10), 60)
    rows = dealt(labels, 10, 12, np.random.default_rng(0))
    assert len({len(r) for r in rows}) == 1
    assert len(np.unique(np.concatenate(rows))) == sum(map(len, rows))
    assert [labels[r].max() < 5 for r in rows] == [True] * 4 + [False] * 8
    assert [labels[r].min() >= 5 for r in rows] == [False] * 4 + [True] * 4 + [False] * 4


def test_distances_between_kinds_of_clients_are_means_over_pairs():
    kind = np.arange(12) // 4
    far = (kind[:, None] != kind) * 2.0
    found = compared(far, -far, 3 * far + 1)
    assert (found["data same"], found["data other"], found["updates all"]) == (0, 2, 7)
    assert (found["alike"], found["alike beyond chance"]) == pytest.approx((1, -1))


def test_distances_are_measured_on_data_and_on_updates(tmp_path):
    text = """
[rows]
"alike" = {}
"far" = { metric = "values:data other" }
"near" = { metric = "values:data same" }
[[claims]]
says = "other classes are farther"
row = "far"
over = "near"
[[panels]]
kind = "matrix"
value = "updates"
"""
    head = HEAD.replace("values:gamma", "values:alike").replace("seeds = 1", 'seeds = 1\nkind = "distances"')
    head = head.replace("+ lws", "").replace("{ clients = 6 }", '{ kind = "IID", clients = 6 }')
    table, found, _ = made(tmp_path, text, head)
    assert judge(table, found)[0].verdict == "direction reproduced"
    assert found[0].values["alike"] > 0.5
    assert draw(table, found, tmp_path / "x.png") is not None


def test_moving_a_client_to_itself_costs_nothing_and_distances_are_symmetric():
    from fedstrata.data import dataset

    data = dataset("digits")
    rows = dealt(data.train[1].numpy(), 10, 6, np.random.default_rng(0))
    found, beyond = data_distances(data, [rows[0], rows[0], rows[2]])
    assert found[0, 1] == pytest.approx(0, abs=1e-6)
    assert found[0, 2] == found[2, 0] > beyond[0, 2] > 0
