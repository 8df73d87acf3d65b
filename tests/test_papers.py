"""Whom to cite: every part has its papers, and the command prints them."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import fedstrata as fs
from fedstrata.papers import BASE, OWN, PAPERS, PART_PAPERS, cite, references
from fedstrata.record import read_recipe
from fedstrata.values import kinds
from tests.cli.test_cli import fedstrata

ROOT = Path(__file__).parent.parent
OURS = {name for name, part in kinds(fs.Part).items() if part.__module__.startswith("fedstrata.parts")}


@dataclass(frozen=True)
class Cited(fs.Step):
    """Carries its own reference."""

    bibtex = """
        @misc{mine,
          title = {Mine}
        }
    """

    def step(self, state, proposal, round):
        return proposal, state


@dataclass(frozen=True)
class Uncited(fs.Step):
    """Has no reference."""

    def step(self, state, proposal, round):
        return proposal, state


def keys(bibtex: str) -> list[str]:
    return re.findall(r"^@\w+\{([\w-]+),$", bibtex, re.M)


def test_every_part_has_a_reference_and_every_reference_a_part():
    assert PART_PAPERS.keys() == OURS
    assert {key for found in PART_PAPERS.values() for key in found} == PAPERS.keys()


@pytest.mark.parametrize("entry", [*PAPERS.values(), OWN], ids=[*PAPERS, "own"])
def test_entries_are_bibtex(entry):
    assert re.fullmatch(r"@(inproceedings|article|misc)\{[a-z0-9]+,\n(  .+\n)+\}", entry)
    assert entry.count("{") == entry.count("}")
    fields = re.findall(r"^  (\w+) = \{", entry, re.M)
    assert len(fields) == len(set(fields))
    assert "title" in fields
    assert {"author", "key"} & set(fields)  # where authors are not known, what to sort by
    assert entry.startswith("@misc") or {"booktitle", "journal"} & set(fields)
    assert entry.isascii()


def test_the_librarys_own_entry_is_that_of_its_citation_file():
    title = re.findall(r'^title: "(.*)"$', (ROOT / "CITATION.cff").read_text(), re.M)[0]
    assert f"title = {{{title}}}" in OWN
    assert fs.__version__ in OWN


def test_papers_come_in_the_order_of_parts_each_once_and_fedavg_first():
    assert keys(cite(fs.recipes.fedavg())) == [BASE]
    recipe = fs.parse_recipe("fedpbs + fedprox + moon + fedadam + lws + FixedShrink()")
    after = ["abounassar2026fedpbs", "li2020fedprox", "li2021moon", "reddi2021fedopt", "shi2025fedlws"]
    assert keys(cite(recipe)) == [BASE, *after]


def test_an_angle_of_the_whole_model_is_fedadps_alone():
    assert keys(cite(fs.recipes.fedadp())) == [BASE, "wu2021fedadp"]
    assert keys(cite(fs.recipes.fedlayerwise())) == [BASE, "wu2021fedadp", "lanjewar2024fedlayerwise"]


def test_parts_of_others_bring_their_own_reference():
    *_, cited, uncited = references(fs.recipes.fedavg(server=(Cited(), Uncited())))
    assert cited == "@misc{mine,\n  title = {Mine}\n}"
    assert uncited.startswith("% The part Uncited has no reference")


@pytest.mark.parametrize("name", fs.recipes.METHODS)
def test_every_method_is_cited(name):
    assert "%" not in cite(fs.recipes.METHODS[name]())


def test_cite_prints_the_papers_of_a_method_and_of_a_run(capsys, tmp_path):
    assert fedstrata("cite", "fedprox + lws") == 0
    shown = capsys.readouterr().out
    assert keys(shown) == [BASE, "li2020fedprox", "shi2025fedlws", "fedstrata"]
    assert fedstrata("run", "--method", "fedprox + lws", "--rounds", "1", "--out", str(tmp_path / "r")) == 0
    capsys.readouterr()
    assert fedstrata("cite", str(tmp_path / "r")) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (None, "is not a run folder: it has no recipe.json"),
        ("{", "cannot be read as JSON"),
        ("[]", "is not a recipe"),
        ('{"kind": "Recipe", "select": {"kind": "Nobody"}}', "no select is called 'Nobody'|Recipe needs a value"),
    ],
)
def test_a_folder_without_a_recipe_gets_a_sentence(recipe, sentence, capsys, tmp_path):
    if recipe is not None:
        (tmp_path / "recipe.json").write_text(recipe)
    assert fedstrata("cite", str(tmp_path)) == 2
    assert re.search(f"^fedstrata: .*({sentence})", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("text", "sentence"), [("runs/nothing", "there is no folder runs/nothing"), ("fedlwss", "did you mean 'fedlws'?")]
)
def test_what_is_neither_a_folder_nor_a_method_gets_a_sentence(text, sentence, capsys):
    assert fedstrata("cite", text) == 2
    assert sentence in capsys.readouterr().err


def test_a_recipe_comes_back_from_its_folder(tmp_path):
    recipe = fs.parse_recipe("fedprox + fedlayerwise + lws(beta=0.2)")
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.to_dict()))
    assert read_recipe(tmp_path) == recipe
