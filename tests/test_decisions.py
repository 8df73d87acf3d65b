"""The register of discrepancies: it names only what there is, and is shown with the method it concerns."""

import json
import re

import pytest

import fedstrata as fs
from fedstrata.decisions import DECISIONS, decisions_of
from fedstrata.experiment import put
from fedstrata.parse import parse_recipe
from fedstrata.recipes import METHODS
from tests.cli.test_cli import fedstrata
from tests.test_papers import OURS, ROOT


def ids(*about: fs.Recipe | str) -> list[str]:
    return [d.id for d in decisions_of(*about)]


def snippets() -> list[str]:
    """What the register says in code."""
    return [s for d in DECISIONS for s in re.findall(r"`(.*?)`", f"{d.choice} {d.option}")]


def test_the_register_is_numbered_without_gaps():
    assert [d.id for d in DECISIONS] == [f"D-{i:02d}" for i in range(1, 29)]


def test_every_part_and_method_in_it_exists():
    named = {name for d in DECISIONS for name in d.parts}
    named |= {name for d in DECISIONS for name in d.presets}
    assert named <= OURS | METHODS.keys()
    assert all(d.where and d.conflict and d.choice and d.parts for d in DECISIONS)


@pytest.mark.parametrize("text", [s for s in snippets() if s[:2] != "--" and s != "mu"])
def test_every_option_is_a_recipe(text):
    assert isinstance(parse_recipe(text), fs.Recipe)


@pytest.mark.parametrize("text", [s for s in snippets() if s[:2] == "--"])
def test_every_setting_is_one_of_an_experiment(text):
    settings = {"method": "fedavg"}
    for setting in re.findall(r"--set (\S+)", text):
        put(settings, setting)
    assert fs.Experiment.of(settings) != fs.Experiment.of({"method": "fedavg"})


def test_the_numbers_in_the_comments_of_the_code_are_in_it():
    code = "".join(p.read_text() for p in (ROOT / "src/fedstrata/parts").rglob("*.py"))
    assert set(re.findall(r"D-\d\d", code)) <= {d.id for d in DECISIONS}


def test_a_preset_says_that_it_takes_the_other_side():
    [said] = [str(d) for d in decisions_of("fedlws_official") if d.id == "D-10"]
    assert said.endswith("Here: the other side, which this preset repeats. Otherwise: `fedlws`.")
    [said] = [str(d) for d in decisions_of("fedlws") if d.id == "D-10"]
    assert said.endswith("Here: the paper. Otherwise: `fedlws_official`.")


def test_those_of_a_recipe_are_those_of_its_parts():
    assert ids(parse_recipe("fedavg + prox")) == ["D-01", "D-12"]
    assert ids("Prox") == ["D-01", "D-12"]
    assert ids("fedprox") == ["D-01", "D-12", "D-17"]  # the method's own as well
    assert ids(parse_recipe("moon")) == []
    assert ids("fedlws", "Nova") == ["D-09", "D-10", "D-19", *(f"D-{i}" for i in range(23, 29))]


def test_explain_ends_with_them(capsys):
    assert fedstrata("explain", "fedprox(mu=0.1) + lws(beta=0.1)") == 0
    shown = capsys.readouterr().out
    assert re.findall(r"D-\d\d", shown.partition("What leaves a client")[2]) == ["D-01", "D-09", "D-10", "D-12", "D-17"]
    assert "Otherwise: fedlws_official." in " ".join(shown.split())
    assert fedstrata("explain", "moon") == 0
    assert "disagree" not in capsys.readouterr().out


def test_explain_says_them_in_json_too(capsys):
    assert fedstrata("explain", "fedlayerwise(alpha=2)", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [d["id"] for d in told["decisions"]] == ["D-05", "D-06", "D-07", "D-08", "D-21"]
    assert told["decisions"][1]["option"] == "`Angle(sign=1)`"
    assert [r.partition(",")[0] for r in told["references"]][-1] == "@inproceedings{lanjewar2024fedlayerwise"
