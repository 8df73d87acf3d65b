"""What `mkdocs build` does besides: pages from outside docs/, the figures of the reproductions, maths as MathML."""

import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parent
PAGES = {"CONTRIBUTING.md": "contributing/README.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
MOVED = {"../experiments/": "experiments/", "../SECURITY.md": "security.md", "docs/": ""}
WIDE = {"performance.md", "reproductions.md", "decisions.md"}
"""Whose tables need the room of the contents beside them."""
SHIM, OURS = "https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js"
ELSEWHERE = re.compile(r'<(?:script|img|link)\b[^>]*(?:src|href)="?https?:[^>]*>')
MATHS = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_files(files: Files, config: Any) -> Files:
    """Add what lives beside docs/."""
    outside = {ROOT / name: target for name, target in PAGES.items()}
    outside |= {png: str(png.relative_to(ROOT)) for png in sorted(ROOT.glob("experiments/*/*.png"))}
    for path, target in outside.items():
        files.append(File.generated(config, target, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What is beside docs/ in the repository is within the site."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    for there, here in MOVED.items():
        markdown = markdown.replace(f"]({there}", f"]({here}")
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Maths as MathML, which browsers draw without a script."""
    return MATHS.sub(lambda m: _mathml(m[2], "inline" if m[1] == "span" else "block"), html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Nothing is loaded from elsewhere."""
    return _at_home(output, page.url)


def on_post_template(output: str, template_name: str, **_: Any) -> str:
    """Nor by the page of what was not found."""
    return _at_home(output, template_name)


def _at_home(html: str, url: str) -> str:
    html = html.replace(SHIM, get_relative_url(OURS, url))
    if found := ELSEWHERE.search(html):
        raise PluginError(f"{url} loads something from elsewhere: {found[0]}")
    return html


def _mathml(latex: str, display: str) -> str:
    """Where the reader has no font for maths, subscripts are lowered as far as letters reach down: let all do alike."""
    drawn = convert(unescape(latex).strip(), display=display)
    return re.sub(r"<msub>(<mi>[^<]*</mi>|<mover.*?</mover>)", r'<msub><mpadded depth="0.2em">\1</mpadded>', drawn)
