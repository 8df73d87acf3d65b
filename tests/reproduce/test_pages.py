"""docs/reproductions.md is what the results say."""

from fedstrata.reproduce import find
from fedstrata.reproduce.pages import page
from tests.test_papers import ROOT


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "reproductions.md").read_text(encoding="utf-8") == page(), "run make pages"


def test_every_reproduction_is_in_it_once():
    text = page()
    assert [text.count(f"\n## {name}\n") for name in find()] == [1] * len(find())
