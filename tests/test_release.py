"""What a release is made of: one version, a changelog from fragments."""

import re
import runpy
from datetime import date
from pathlib import Path

import fedstrata

ROOT = Path(__file__).parent.parent
gathered = runpy.run_path(str(ROOT / "release" / "changelog.py"))["gathered"]
TODAY = date(2026, 11, 18)


def test_the_version_is_said_once():
    said = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", said, re.M) == [fedstrata.__version__]
    assert "version" in re.findall(r"dynamic = \[(.*)\]", (ROOT / "pyproject.toml").read_text())[0]


def test_fragments_become_a_section_below_the_head_and_above_older_ones():
    before = "# Changelog\n\nWords.\n\n## Unreleased\n\n- A.\n\n## 0.0.1 (2025-01-01)\n\n- Old.\n"
    after = gathered(before, {"b": "- B.\n", "a": "- C,\n  and more.\n"}, "0.1.0", TODAY)
    section = "## 0.1.0 (2026-11-18)\n\n- A.\n- C,\n  and more.\n- B.\n"
    assert after == f"# Changelog\n\nWords.\n\n{section}\n## 0.0.1 (2025-01-01)\n\n- Old.\n"


def test_the_next_release_needs_no_unreleased_section():
    before = "# Changelog\n\nWords.\n\n## 0.0.1 (2025-01-01)\n\n- Old.\n"
    after = gathered(before, {"a": "- New.\n"}, "0.1.0", TODAY)
    assert after == "# Changelog\n\nWords.\n\n## 0.1.0 (2026-11-18)\n\n- New.\n\n## 0.0.1 (2025-01-01)\n\n- Old.\n"


def test_every_fragment_is_a_list_for_users():
    for path in (ROOT / "changelog.d").glob("*.md"):
        assert path.read_text().startswith("- "), path.name
