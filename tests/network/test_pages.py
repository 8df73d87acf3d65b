"""Pages with commands that need a network, walked as a person would: docs/deploy.md from a lab to a deployment."""

from pathlib import Path

import pytest

from tests.blocks import blocks, same
from tests.network.federation import only_networked
from tests.network.pages import walk

pytestmark = only_networked

ROOT = Path(__file__).parents[2]
TEXTS = {p.name: p.read_text(encoding="utf-8") for p in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
NETWORKED = [name for name, text in TEXTS.items() if any(b.networked for b in blocks(text))]


@pytest.mark.parametrize("name", NETWORKED)
def test_a_page_shows_what_happens_on_a_network(name: str, tmp_path: Path):
    found = blocks(TEXTS[name])
    last = max(i for i, b in enumerate(found) if b.networked)
    with walk(tmp_path, TEXTS[name]) as session:
        for block in found[: last + 1]:
            if block.reason is None or block.networked:
                real = session.run(block)
                assert same(block.text, real), f"{name}, line {block.line}, shows\n{block.text}\nbut it is\n{real}"
