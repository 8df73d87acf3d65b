"""From folders to groups of runs."""

import json
import shutil

import pytest

import fedstrata as fs
from fedstrata.errors import DataError
from fedstrata.report.folders import find, method_name
from fedstrata.report.sections import Draft, results
from fedstrata.report.series import mean_band, over_rounds
from tests.report.runs import compared, run_into


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """fedavg with two seeds, and with another learning rate; fedlws once."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 0):
        run_into(folder / f"a{seed}", "fedavg", seed=seed)
    run_into(folder / "fast", "fedavg", training={"epochs": 1, "lr": 0.5})
    run_into(folder / "deep/b", "fedlws")
    return folder


def test_runs_that_differ_in_their_seed_alone_are_one_group(folder):
    groups = {g.name: [r.seed for r in g.runs] for g in find([folder]).groups}
    assert groups == {"fedavg, lr 0.1": [0, 1], "fedavg, lr 0.5": [0], "fedlws": [0]}


def test_a_run_given_twice_counts_once(folder):
    assert len(find([folder / "a0", folder, folder / "deep"]).runs) == 4


def test_a_run_that_was_made_twice_counts_once(folder, tmp_path):
    again = run_into(tmp_path / "again", "fedavg", seed=1)
    more = run_into(tmp_path / "more", "fedavg", seed=1, rounds=4)
    found = find([folder / "a0", folder / "a1", again])
    assert [[r.path.name for r in g.runs] for g in found.groups] == [["a0", "a1"]]
    assert found.repeated == (again,)
    assert "Left out, as they have the settings and the seed of another run" in results(Draft(found))
    assert find([folder / "a1", more]).repeated == ()  # it has other settings


def test_a_recipe_is_called_by_its_method_or_by_what_was_set_in_it():
    assert method_name(fs.recipes.fedlws()) == "fedlws"
    assert method_name(fs.parse_recipe("fedprox(mu=0.5) + lws(beta=0.3)")) == "fedavg + Prox(mu=0.5) + LWS(beta=0.3)"


def test_bands_are_those_of_student():
    mean, low, high = mean_band([1.1, 1.2, 1.3])
    assert mean == pytest.approx(1.2)
    assert high - mean == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-6)
    assert mean - low == pytest.approx(high - mean)
    assert mean_band([0.7]) == (0.7, 0.7, 0.7)


def test_bands_stay_where_values_can_be():
    assert mean_band([0.1, 0.9], rate=True)[1:] == (0, 1)
    assert mean_band([0.1, 0.9])[2] > 1
    assert mean_band([-0.1, 0.9])[1] < -0.1


def test_a_curve_is_the_mean_over_seeds(folder):
    group = find([folder / "a0", folder / "a1"]).groups[0]
    series = over_rounds(group.runs, "test", "accuracy")
    values = [run.rounds[2]["test"]["accuracy"] for run in group.runs]
    assert series.rounds == [1, 2, 3]
    assert series.mean[2] == pytest.approx(sum(values) / 2)
    assert series.banded
    assert not over_rounds(group.runs[:1], "test", "accuracy").banded


def test_numbers_that_are_not_finite_are_no_part_of_a_curve(folder):
    run = find([folder / "a0"]).runs[0]
    run.rounds[1]["test"]["loss"] = None  # as the record writes them
    assert over_rounds([run], "test", "loss").rounds == [1, 3]


def test_a_comparison_names_its_groups(folder, tmp_path):
    for name in ("a0", "a1"):
        shutil.copytree(folder / name, tmp_path / "mine" / name)
    (tmp_path / "compare.json").write_text(json.dumps(compared({"mine": ["mine/a0", "mine/a1"], "gone": ["gone/a0"]})))
    found = find([tmp_path])
    assert [(g.name, len(g.runs)) for g in found.groups] == [("mine", 2)]
    assert found.comparisons[0]["seeds"] == [0, 1]


def test_what_is_no_run_is_refused_in_a_sentence(folder, tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        find([tmp_path / "nowhere"])
    with pytest.raises(DataError, match=r"it has no rounds\.jsonl"):
        find([tmp_path])
    shutil.copytree(folder / "a0", tmp_path / "begun")
    (tmp_path / "begun/rounds.jsonl").write_text("")
    with pytest.raises(DataError, match="has finished a round yet"):
        find([tmp_path / "begun"])
    (tmp_path / "begun/rounds.jsonl").write_text('{"round": 0, "tes')
    with pytest.raises(DataError, match="cannot be read as a run folder"):
        find([tmp_path / "begun"])
    (tmp_path / "compare.json").write_text("[]")
    with pytest.raises(DataError, match="is not what `fedstrata compare` writes"):
        find([tmp_path])
