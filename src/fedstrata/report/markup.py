"""The pieces of HTML that the page is made of. What comes from runs is escaped here."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from unicodedata import normalize

ACCENTS = {'"': "\u0308", "'": "\u0301", "`": "\u0300", "^": "\u0302", "~": "\u0303", "v": "\u030c", "c": "\u0327"}
"""What stands after the backslash in BibTeX, and the mark that it puts on a letter."""


@dataclass(frozen=True)
class Cell:
    """What a cell of a table shows, and what it is sorted by: a number, or else its text."""

    html: str
    value: float | None = None

    @classmethod
    def text(cls, text: object) -> "Cell":
        """A text as it is."""
        return cls(escape(str(text)))

    @classmethod
    def number(cls, value: float | None, form: str = "number", low: float | None = None, high: float | None = None):
        """A number in its form, with the interval around it if there is one; nothing is a dash."""
        if value is None or not isfinite(value):
            return cls('<span class="none">\u2013</span>')
        more = ""
        if low is not None and high is not None and high > low:
            ends = " \u2013 ".join(formed(v, form).removesuffix(" %").removesuffix(" s") for v in (low, high))
            more = f'<span class="interval">{ends}</span>'
        return cls(f"{formed(value, form)}{more}", value)


def formed(value: float, form: str) -> str:
    """A number as people read it: percent, points (of percent, with a sign), seconds, bytes, rounds, or any other."""
    if form == "percent":
        return f"{100 * value:.1f} %"
    if form == "points":
        return f"{100 * value:+.2f}"
    if form == "seconds":
        return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"
    if form == "bytes":
        step = next((i for i in range(4) if abs(value) < 1000 * 1024**i), 4)
        return f"{value / 1024**step:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[step]}"
    if form == "rounds" or (form == "whole" and float(value).is_integer()):
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    return f"{value:.4g}"


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], numeric_from: int = 1) -> str:
    """A table that is sorted by a click on a column's head; columns from some number on are of numbers."""
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_side(i, numeric_from)}><button type="button">{_unbroken(h)}</button></th>'
        for i, h in enumerate(head)
    )
    body = "".join(f"<tr>{''.join(_cell(i, c, numeric_from) for i, c in enumerate(row))}</tr>" for row in rows)
    inner = f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="sorted">{inner}</table></div>'


def _cell(i: int, cell: Cell, numeric_from: int) -> str:
    sort = f' data-value="{cell.value!r}"' if cell.value is not None else ""
    return f"<td{_side(i, numeric_from)}{sort}>{cell.html}</td>"


def _unbroken(title: str) -> str:
    """A column's title whose per cents stay with their numbers."""
    return escape(title).replace(" %", "&nbsp;%")


def _side(i: int, numeric_from: int) -> str:
    return ' class="n"' if i >= numeric_from else ""


def definitions(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and what they stand for."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in pairs) + "</dl>"


def details(summary: str, html: str) -> str:
    """What is shown when asked for."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def code(text: str, copied: bool = False) -> str:
    """A block of code, with a button that copies it if wanted."""
    button = '<button type="button" class="copy">copy</button>' if copied else ""
    return f'<div class="code">{button}<pre>{escape(text)}</pre></div>'


def ticked(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def paragraphs(text: str) -> str:
    """Escaped, in paragraphs that break where the page does."""
    return "".join(f"<p>{escape(' '.join(p.split()), quote=False)}</p>" for p in text.split("\n\n"))


def citation(entry: str) -> str:
    """A BibTeX entry as a line to read: authors, title, where, year."""
    found = {k.lower(): _plain(v) for k, v in re.findall(r"^\s*(\w+) = \{(.*?)\},?$", entry, re.M | re.S)}
    if "title" not in found:
        return escape(entry.lstrip("% "))
    authors = [a.partition(",")[0] for a in found.get("author", "").split(" and ")]
    who = f"{authors[0]} et al." if len(authors) > 2 else " and ".join(authors)
    where = found.get("booktitle") or found.get("journal") or found.get("publisher") or ""
    where = where or (f"arXiv {found['eprint']}" if "eprint" in found else found.get("note", ""))
    rest = ", ".join(part for part in (where, found.get("year", "")) if part)
    return f"{escape(who.rstrip('.'))}. <cite>{escape(found['title'])}</cite>. {escape(rest)}.".lstrip(". ")


def _plain(text: str) -> str:
    """BibTeX without braces, accents in place, in one line."""
    marked = re.sub(r"\\([\"'`^~vc])\s*\{?(\w)\}?", lambda m: m[2] + ACCENTS[m[1]], text)
    marked = marked.replace(r"$\mu$", "\u03bc")
    return normalize("NFC", " ".join(re.sub(r"[{}]", "", marked).replace("--", "\u2013").split()))
