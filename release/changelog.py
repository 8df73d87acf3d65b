"""Gather the fragments of changelog.d into CHANGELOG.md, under today's date and the version, and remove them."""

import re
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parent.parent


def gathered(changelog: str, fragments: dict[str, str], version: str, today: date) -> str:
    """The changelog with a section for the version: what was unreleased, then the fragments by their names."""
    head, _, rest = changelog.partition("## Unreleased\n")
    if not rest:
        head, sep, rest = changelog.partition("\n## ")
        head, rest = f"{head.rstrip()}\n\n", sep.removeprefix("\n") + rest
        own, older = "", rest
    else:
        own, sep, older = rest.partition("\n## ")
        older = sep.removeprefix("\n") + older
    entries = "\n".join(text.strip() for text in [own, *(fragments[n] for n in sorted(fragments))] if text.strip())
    section = f"## {version} ({today.isoformat()})\n\n{entries}\n"
    return f"{head.rstrip()}\n\n{section}" + (f"\n{older}" if older else "")


def main() -> int:
    """Write the file and remove the fragments; nothing is done where there are none, or the version has its section."""
    version = re.findall(r'__version__ = "(.*)"', (ROOT / "src/fedstrata/version.py").read_text())[0]
    files = sorted((ROOT / "changelog.d").glob("*.md"))
    path = ROOT / "CHANGELOG.md"
    if not files or f"## {version} (" in path.read_text():
        print(f"nothing to gather for {version}: no fragments, or it has its section already; raise the version first")
        return 1
    fragments = {f.stem: f.read_text() for f in files}
    path.write_text(gathered(path.read_text(), fragments, version, date.today()))
    for f in files:
        f.unlink()
    print(f"{len(files)} fragments are in {path.name} under {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
