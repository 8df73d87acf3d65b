"""What the pages show is what happens: every command and every Python block runs, and prints what stands below it."""

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

import fedstrata as fs
from benchmarks import choose, sizes
from fedstrata.recipes import METHODS
from tests.blocks import Block, Session, blocks, commands, same

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "contributing").glob("*.md")),
]
FOUND = {page: blocks(page.read_text(encoding="utf-8")) for page in PAGES}
RUN = {page: [b for b in found if b.reason is None] for page, found in FOUND.items()}
LONG = {"README.md", "quickstart.md", "experiments.md", "own-data.md"}
"""Pages whose commands take ten seconds and more."""
LEFT = [(page, b) for page, found in FOUND.items() for b in found if b.reason is not None]
PLACED = ["labels", "few", "sizes", "features", "signs", "flips", "slow", "fair", "mnist"]
ALIASES = {"__version__", "Arrays", "Grain"}
REASONS = "a cluster", "a network", "a GPU", "other machines", "real data", "time", "a server"


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow if p.name in LONG else (), id=p.name) for p in PAGES if RUN[p]],
)
def test_a_page_shows_what_happens(page: Path, tmp_path: Path):
    session = Session(tmp_path)
    for block in RUN[page]:
        real = session.run(block)
        assert same(block.text, real), f"{page.name}, line {block.line}, shows\n{block.text}\nbut it is\n{real}"


@pytest.mark.parametrize(("page", "block"), LEFT, ids=[f"{p.name}:{b.line}" for p, b in LEFT])
def test_what_is_not_run_says_what_it_would_take(page: Path, block: Block):
    assert block.reason is not None
    assert block.reason.startswith(REASONS), f"{page.name}, line {block.line}: begin with one of {REASONS}"
    pytest.skip(f"{page.name} takes {block.reason}")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_no_command_hides_in_another_kind_of_block(page: Path):
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^\s*```\w", text, re.M)) == len(FOUND[page]), "a fence is indented, or not closed"
    assert not {b.kind for b in FOUND[page]} & {"bash", "sh", "shell"}, "commands go into console blocks"
    for block in RUN[page]:
        if block.kind == "console":
            assert commands(block.text), f"line {block.line} has no command; those begin with `$ `"


def test_the_table_of_methods_in_the_readme_is_complete():
    assert re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.M) == list(METHODS)


def test_the_tables_of_evidence_are_those_of_the_results():
    page = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8")
    results = json.loads(choose.RESULTS.read_text())
    assert re.findall("<!-- evidence (.*) -->", page) == [n for n in PLACED if n in results]
    assert page == choose.with_tables(page, results), "run make pages"


def test_the_figures_of_style_are_near_what_is_measured_now():
    ours = re.compile(r"^\| fedstrata \|.* / (\d+) \|.* / (\d+) \| (\d+) % \| (\d+) % \|$", re.M)
    page = (ROOT / "docs" / "contributing" / "style.md").read_text(encoding="utf-8")
    told, found = (list(map(int, ours.findall(text)[0])) for text in (page, sizes.with_figures(page)))
    assert told == pytest.approx(found, rel=0.1), "run make pages"


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    told = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", page, re.M)}
    modules = {n for n in fs.__all__ if isinstance(getattr(fs, n), ModuleType)}
    assert set(fs.__all__) - modules - ALIASES <= told


def test_another_accuracy_or_another_word_is_not_the_same():
    shown = (
        "fedavg ━━━━ 3/3 accuracy  61.4 %  0.07 s a round left 0:00:00\nThe run folder is runs/20261118-030000-fedavg\n"
    )
    assert same(shown, shown.replace("0.07", "0.31").replace("━━━━", "━━━╸").replace("030000", "040506"))
    assert same(shown, shown.replace("61.4", "61.7"))
    assert not same(shown, shown.replace("61.4", "71.4"))
    assert not same(shown, shown.replace("3/3", "2/3"))
    assert not same(shown, shown.replace("folder", "place"))
    assert not same(shown, f"{shown}more\n")
    assert same("a\n...\nc\n", "a\nb\nb\nc\n")
    assert not same("a\n...\nc\n", "a\nb\n")


def test_times_in_a_table_may_differ_and_what_is_beside_them_may_not():
    shown = "method   last  time,  above\n            s  first\nfedavg   61.4    0.3  +1.00\n"
    assert same(shown, shown.replace(" 0.3", "27.9"))
    assert not same(shown, shown.replace("+1.00", "+9.00"))


def test_a_command_that_cannot_be_run_here_must_say_so(tmp_path: Path):
    block = blocks("```console\n$ ray start --head\n```\n")[0]
    with pytest.raises(AssertionError, match="not run: why"):
        Session(tmp_path).run(block)


def test_a_command_that_fails_is_not_passed_over(tmp_path: Path):
    with pytest.raises(AssertionError, match="ended with 2"):
        Session(tmp_path).run(blocks("```console\n$ fedstrata explain fedavgg\n```\n")[0])
