"""The pages about the methods and the models are what the code says."""

import re
import subprocess
import sys

import pytest

import fedstrata as fs
from fedstrata.decisions import DECISIONS
from fedstrata.equations import EQUATIONS
from fedstrata.models import MODELS
from fedstrata.pages import BEGIN, END, models_page, page, pages, with_decisions, write
from fedstrata.parse import parse_recipe
from fedstrata.recipes import METHODS
from tests.test_papers import ROOT

DOCS = ROOT / "docs"
SOURCES = ["Where sources are unclear or disagree", "Published tables with it", "References"]


def test_the_pages_are_up_to_date():
    found = {p.name: p.read_text(encoding="utf-8") for p in (DOCS / "methods").iterdir()}
    assert found == pages(), "run make pages"


def test_the_table_of_models_is_up_to_date():
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    assert text == models_page(), "run make pages"
    assert re.findall(r"^\| `(\w+)` \|", text, re.M) == list(MODELS)


def test_the_table_of_decisions_is_up_to_date():
    text = (DOCS / "decisions.md").read_text(encoding="utf-8")
    assert text == with_decisions(text), "run make pages"
    assert re.findall(r"^\| (D-\d\d) \|", text, re.M) == [d.id for d in DECISIONS]


@pytest.mark.parametrize("name", METHODS)
def test_the_recipe_on_a_page_is_the_methods(name):
    text = page(name)
    python, words = (re.findall(rf"```{kind}\n(.*?)\n```", text, re.S)[0] for kind in ("python", "text"))
    assert eval(python, {"Recipe": fs.Recipe} | vars(fs.parts)) == METHODS[name]()
    assert parse_recipe(words) == METHODS[name]()


def test_a_page_has_all_its_sections():
    text = page("fedpbs")
    titles = ["Recipe", "Options", "Parts", "Cost", "What leaves a client", "What it needs"]
    assert re.findall("^## (.*)$", text, re.M) == [*titles, *SOURCES]
    assert "| `threshold` | `'median'` | a number or 'median' |" in text
    assert "- **loss variance**, from every client the variance of its losses on one mini-batch" in text
    assert "give the experiment some, e.g. proxy = 200" in page("fedlaw")


def test_a_page_tells_what_came_out_of_published_tables_beside_fedavg():
    told = page("moon").partition("## Published tables with it")[2].partition("## References")[0]
    assert re.search(
        r"\| \| MOON \| FedAvg \|\n.*\n\| 0.2, SGD \| 91.9 / \d\d\.\d\d ± \d\.\d\d \(5\) \| \d\d\.\d\d", told
    )
    assert "FedGA" not in told
    assert re.search(r"Not run yet:\n(\n- .*)*\n- \[fedlws-table1-tiny\]", page("fedlws"))  # its data is not there


def test_links_of_the_index_lead_somewhere():
    index = pages()["README.md"]
    assert re.findall(r"\]\((\w+)\.md\)", index) == list(METHODS)
    assert "pFedLA" in index
    assert "F3" in index


def test_what_was_written_before_goes_and_what_others_wrote_stays(tmp_path):
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods/gone.md").write_text(page("fedavg"))
    (tmp_path / "methods/mine.md").write_text("# Notes of my own")
    (tmp_path / "decisions.md").write_text(f"before\n{BEGIN}\noutdated\n{END}\nafter\n")
    write(tmp_path)
    assert {p.name for p in (tmp_path / "methods").iterdir()} == {"mine.md", *pages()}
    register = (tmp_path / "decisions.md").read_text()
    assert register.startswith(f"before\n{BEGIN}\n\n| id |")
    assert register.endswith(f"|\n\n{END}\nafter\n")
    assert "outdated" not in register


def test_a_page_without_a_place_for_the_table_is_refused():
    with pytest.raises(fs.FedstrataError, match="goes between the lines"):
        with_decisions("# Decisions")


def test_pages_are_the_same_in_another_process(tmp_path):
    (tmp_path / "decisions.md").write_text((DOCS / "decisions.md").read_text())
    subprocess.run([sys.executable, "-m", "fedstrata.pages", str(tmp_path)], check=True)
    assert {p.name: p.read_text() for p in (tmp_path / "methods").iterdir()} == pages()


def test_equations_belong_to_parts_and_are_shown():
    assert EQUATIONS.keys() <= vars(fs.parts).keys() | {"OfficialLWS"}
    assert f"$$\n{EQUATIONS['LWS']}\n$$" in page("fedlws")
    assert EQUATIONS["LWS"] not in page("fedavg")


def test_a_page_links_the_published_tables_that_have_the_method():
    assert "](../reproductions.md#fedlws-table4)" in page("fedlws")
    assert "fedlws-table4" not in page("qfedavg")
