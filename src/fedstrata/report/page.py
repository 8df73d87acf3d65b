"""One page about some runs that opens offline: its text, its figures and all that draws them in a single file."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from fedstrata.errors import DataError
from fedstrata.report.folders import Found, find
from fedstrata.report.sections import SECTIONS, Draft, facts
from fedstrata.report.style import CLASSES, COLOURS, DARK_CLASSES, DARK_COLOURS
from fedstrata.version import __version__

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="fedstrata {version}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
<script>
try {{ document.documentElement.dataset.theme = localStorage.getItem("fedstrata-theme") || ""; }} catch (e) {{}}
</script>
</head>
<body>
<header class="top"><span class="brand">fedstrata</span><span class="grow"></span>
<button type="button" id="theme" aria-label="light or dark">◐</button></header>
<div class="frame">
<nav class="toc" aria-label="contents"><ol>{contents}</ol></nav>
<main>
<h1>{title}</h1>
<dl class="facts">{facts}</dl>
{sections}
<footer>Made by fedstrata {version}. This page is one file and asks the network for nothing.</footer>
</main>
</div>
<script>{plotly}</script>
<script type="application/json" id="figures">{figures}</script>
<script>{script}</script>
</body>
</html>
"""


def report(
    folders: str | Path | Iterable[str | Path], path: str | Path = "report.html", title: str | None = None
) -> Path:
    """Write one HTML page about run folders, folders of run folders, or what `compare` wrote; it opens offline."""
    found = find([folders] if isinstance(folders, (str, Path)) else folders)
    plotly = plotly_script()
    path = Path(path)
    text = page(found, plotly, title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise DataError(f"the page cannot be written to {path}: {e.strerror or e}; give another file by -o") from None
    return path


def page(found: Found, plotly: str, title: str | None = None) -> str:
    """The whole page as text."""
    draft = Draft(found)
    bodies = {anchor: make(draft) for anchor, (_, make) in SECTIONS.items()}
    sections = "\n".join(
        f'<section id="{anchor}"><h2>{SECTIONS[anchor][0]}</h2>{body}</section>' for anchor, body in bodies.items()
    )
    return PAGE.format(
        version=__version__,
        title=escape(title or _title(found)),
        style=_colours() + _file("page.css"),
        contents="".join(f'<li><a href="#{a}">{escape(t)}</a></li>' for a, (t, _) in SECTIONS.items()),
        facts="".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts(found)),
        sections=sections,
        plotly=plotly,
        figures=json.dumps(draft.figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        script=_file("page.js"),
    )


def plotly_script() -> str:
    """The JavaScript that comes with plotly, to be put into the page."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise DataError("the report page needs plotly: pip install plotly") from None
    return get_plotlyjs()


def _title(found: Found) -> str:
    """The methods by their names, where they are few."""
    *others, last = [group.name for group in found.groups]
    if len(others) > 3:
        return f"{len(others) + 1} methods"
    return ", ".join([*others, last])


def _colours() -> str:
    """The colours of lines as variables of the style sheet, light and dark."""

    def block(where: str, lines: Sequence[str], classes: Sequence[str]) -> str:
        named = {f"c{i}": c for i, c in enumerate(lines)} | {f"class-{i}": c for i, c in enumerate(classes)}
        return where + "{" + "".join(f"--{name}:{colour};" for name, colour in named.items()) + "}"

    dark = block(':root:not([data-theme="light"])', DARK_COLOURS, DARK_CLASSES)
    return (
        block(":root", COLOURS, CLASSES)
        + f"@media (prefers-color-scheme: dark){{{dark}}}"
        + block(':root[data-theme="dark"]', DARK_COLOURS, DARK_CLASSES)
    )


def _file(name: str) -> str:
    return files("fedstrata.report").joinpath(name).read_text(encoding="utf-8")
