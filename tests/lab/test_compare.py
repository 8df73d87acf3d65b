"""Methods compared over paired seeds."""

import json
from typing import Any

import numpy as np
import pytest

import fedstrata as fs
from fedstrata.errors import SettingError
from fedstrata.experiment import read_toml
from fedstrata.lab.compare import slug, unlike
from fedstrata.lab.stats import holm, interval, paired
from fedstrata.record import read_rounds
from tests.lab.test_many import SMALL

FOUR = ["fedavg", "fedavg()", "fedprox(mu=50)", "fedavg + lws(beta=0.1)"]


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> fs.Comparison:
    """fedavg, itself, one that is worse by far, one that is much the same."""
    out = tmp_path_factory.mktemp("four")
    return fs.compare(FOUR, SMALL | {"rounds": 6}, seeds=3, out=out, jobs=1)


def test_the_folder_is_as_the_report_expects_it(four):
    said = json.loads((four.folder / "compare.json").read_text())
    assert list(said) == ["fedstrata", "settings", "seeds", "target", "methods", "columns", "rows", "words"]
    assert said["seeds"] == [0, 1, 2]
    assert [m["slug"] for m in said["methods"]] == ["fedavg", "fedavg-2", "fedprox-mu-50", "fedavg-lws-beta-0.1"]
    assert [m["name"] for m in said["methods"]] == FOUR == [r["method"] for r in said["rows"]]
    assert said["methods"][2]["runs"] == [f"fedprox-mu-50/seed-{s}" for s in range(3)]
    assert all(len(read_rounds(four.folder / run)) == 6 for m in said["methods"] for run in m["runs"])
    assert fs.Experiment.of(said["settings"]).rounds == 6
    keys = {c["key"] for c in said["columns"]}
    assert keys == {"last", "best", "tail", "rounds", "worst10", "oscillation", "bytes", "seconds"}
    assert {c["form"] for c in said["columns"]} <= {"percent", "number", "seconds", "bytes", "rounds"}
    assert all(set(row) == keys | {"method", "by", "against_first"} for row in said["rows"])
    assert said["rows"][0]["against_first"] is None
    assert len(said["words"]) == 4


def test_its_numbers_are_those_of_the_runs(four):
    rounds = [read_rounds(four.folder / f"fedprox-mu-50/seed-{s}") for s in range(3)]
    told = [[r["test"]["accuracy"] for r in one] for one in rounds]
    row = four.rows[2]
    assert row["last"]["values"] == [one[-1] for one in told]
    assert row["tail"]["values"] == pytest.approx([np.mean(one[-3:]) for one in told])  # half of six rounds
    assert row["best"]["mean"] == pytest.approx(np.mean([max(one) for one in told]))
    assert row["oscillation"]["values"] == pytest.approx([np.std(one[-3:]) for one in told])
    assert row["worst10"]["values"] == [one[-1]["clients"]["worst10"] for one in rounds]
    assert row["last"]["low"] == pytest.approx(interval(row["last"]["values"]).low)
    assert row["bytes"]["mean"] == 6 * 4 * (2600 + 2608)
    assert four.target == pytest.approx(np.mean([r["tail"]["mean"] for r in four.rows[:1]]))


def test_tests_are_paired_and_corrected(four):
    first, *others = four.rows
    tests = [paired(r["tail"]["values"], first["tail"]["values"]) for r in others]
    assert [r["against_first"]["p"] for r in others] == pytest.approx(holm([t.p for t in tests if t.p is not None]))
    assert others[1]["against_first"]["low"] == pytest.approx(tests[1].low)


def test_a_finish_that_changes_nothing_makes_no_difference():
    """The model handed out is held against the models handed out, not against the mean of a rising curve."""
    found = fs.compare(["fedavg", "ccvr(lr=1e-12)"], SMALL | {"rounds": 6, "model": "mlp200"}, seeds=3, jobs=1)
    first, other = found.rows
    assert first["tail"]["mean"] < first["last"]["mean"] - 0.01  # it rises
    assert first["by"] == other["by"] == "last"
    assert other["against_first"]["difference"] == pytest.approx(0, abs=1e-3)
    assert other["against_first"]["verdict"] == "noise"
    assert other["bytes"]["mean"] > first["bytes"]["mean"]
    assert " in the end " in found.words[0]


def test_a_method_does_not_differ_from_itself(four):
    found = four.rows[1]["against_first"]
    assert found == {"difference": 0.0, "low": 0.0, "high": 0.0, "p": 1.0, "p_alone": 1.0, "verdict": "noise"}
    assert four.words[1] == "fedavg() does exactly as fedavg with every seed: no real difference."


def test_what_is_held_back_by_force_is_really_worse(four):
    found = four.rows[2]["against_first"]
    assert found["difference"] < -0.05
    assert found["verdict"] == "real"
    assert "below fedavg" in four.words[2]
    assert four.words[2].endswith(": a real difference.")
    assert str(four).splitlines() == four.words


def test_a_target_that_some_seeds_miss_has_no_mean(four, tmp_path):
    found = fs.compare(FOUR[2:3], SMALL | {"rounds": 1}, seeds=1, target=1.0, jobs=1)
    assert found.rows[0]["rounds"] == {"mean": None, "low": None, "high": None, "values": [None]}
    assert found.folder is None


def test_with_one_seed_nothing_is_tested():
    found = fs.compare(["fedavg", "fedprox(mu=50)"], SMALL, seeds=[7], jobs=1)
    assert found.rows[1]["against_first"]["verdict"] is None
    assert found.rows[1]["against_first"]["p"] is None
    assert "nothing can be tested" in found.words[1]
    assert found.seeds == [7]


def test_a_method_that_needs_data_on_the_server_costs_all_the_same_test_examples(tmp_path):
    found = fs.compare(["fedavg", "feddf(epochs=1)"], SMALL, seeds=1, out=tmp_path, jobs=1)
    settings = [read_toml(tmp_path / m["runs"][0] / "experiment.toml") for m in found.methods]
    assert [s["proxy"] for s in settings] == [200, 200]


def test_seeds_and_targets_that_make_no_sense_are_refused():
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seeds": [1, 1]}, "every seed must be another one"),
        ({"target": 90}, r"target must be an accuracy in \(0, 1\]"),
        ({"jobs": 0}, "jobs must be at least 1"),
    ]
    for wrong, said in wrongs:
        with pytest.raises(SettingError, match=said):
            fs.compare(["fedavg"], SMALL, **wrong)
    with pytest.raises(SettingError, match="at least one method"):
        fs.compare([], SMALL)


def test_names_of_folders_are_plain_and_unlike():
    assert slug("fedavg + lws(beta=0.1)") == "fedavg-lws-beta-0.1"
    assert slug("../..") == "run"
    assert unlike(["a", "A", "a", "a-2"]) == ["a", "A-2", "a-3", "a-2-2"]
