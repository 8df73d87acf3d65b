"""The columns of a table: features, labels and whose they are, or a sentence that says what is wrong with them."""

import csv
import shlex
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedstrata.errors import DataError, near

CLIENT = "client"
"""The column of the clients, where nobody says another; a file need not have it."""

MANY_ROWS = 50
"""So many different whole numbers are rather names than measurements."""

MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-")
"""What stands in a table where a number is missing."""


class Columns(NamedTuple):
    """What a file's columns are called."""

    label: str
    client: str
    alone: bool  # whether it is all one client's: then there need not be one of clients, nor those left out
    classes: Sequence[str] = ()  # words for labels in the order of their numbers, where that was agreed on
    without: Sequence[str] = ()  # are no features
    features: Sequence[str] = ()  # in the order that was agreed on; the file's own unless given


class Found(NamedTuple):
    """What a file or folder holds, before it is checked and cut."""

    x: np.ndarray
    y: np.ndarray
    owner: np.ndarray | None  # of each example, the client
    test: tuple[np.ndarray, np.ndarray] | None = None
    scaled: bool = False  # columns of a table are brought to one scale
    names: tuple[str, ...] | None = None  # of the classes, where folders or words name them
    counting: tuple[str, ...] = ()  # features with another whole number in every row
    columns: tuple[str, ...] = ()  # the names of the features, where a table gives them


def of_table(path: Path, columns: dict[str, np.ndarray], called: Columns) -> Found:
    """Every column but those of labels and clients, and those left out, is a feature."""
    label, client, alone, agreed, without, order = called
    if label not in columns:
        raise DataError(f"{path} has no column {label!r} for the labels; say which by --label: {near(label, columns)}")
    if not alone and (unknown := [n for n in without if n and n not in columns]):
        raise DataError(f"{path} has no column {unknown[0]!r} to leave out; {near(unknown[0], columns)}")
    if not alone and client not in (CLIENT, *columns):
        said = near(client, [n for n in columns if n != label])
        raise DataError(f"{path} has no column {client!r} for the clients; say which by --client: {said}")
    names = [n for n in columns if n not in (label, client, *without)]
    if not names:
        raise DataError(f"{path} has no column of features beside the labels, clients and what is left out")
    if order and (differ := unlike(names, order)):
        raise DataError(f"{path} {differ}; give it the columns of the others")
    names = list(order) or names
    read = {n: _numbers(columns[n]) for n in names}
    if words := {n: first_text(columns[n]) for n, v in read.items() if v is None}:
        raise DataError(f"{path}: {_about_words(words, client in columns)}")
    numbers = {n: v for n, v in read.items() if v is not None}
    if gaps := {n: bad for n, v in numbers.items() if len(bad := np.flatnonzero(~np.isfinite(v).all(1)))}:
        raise DataError(f"{path}: {_about_gaps(gaps)}")
    y, classes = _numbered(columns[label], path, agreed)
    counting = tuple(n for n, v in numbers.items() if _counts(v))
    x = np.concatenate(list(numbers.values()), 1)
    return Found(x, y, columns.get(client), scaled=True, names=classes, counting=counting, columns=tuple(names))


def unlike(names: Sequence[str], others: Sequence[str]) -> str | None:
    """How columns differ from those of other files, in whatever order they are."""
    lacks, more = ([n for n in a if n not in b] for a, b in ((others, set(names)), (names, set(others))))
    said = [
        f"{verb} {n[0]!r}{f' and {len(n) - 1} more' * (len(n) > 1)}"
        for verb, n in (("lacks", lacks), ("has", more))
        if n
    ]
    return f"has other columns than the others: it {' and '.join(said)}" if said else None


def leave_out(*names: str) -> str:
    """The option that leaves these columns out: names with commas between, as a line of CSV."""
    line = StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return f"--without {shlex.quote(line.getvalue())}"


def named(text: str) -> tuple[str, ...]:
    """The columns that such a line names; nothing between commas is a column without a name, if there is one."""
    return tuple(n.strip() for n in next(csv.reader([text], skipinitialspace=True), []))


def _counts(column: np.ndarray) -> bool:
    """Whether a column has another whole number in every row, as the numbers of patients are."""
    whole = column.shape[1] == 1 and len(column) >= MANY_ROWS and (column == np.rint(column)).all()
    return bool(whole and len(np.unique(column)) == len(column))


def _about_words(words: dict[str, str], owned: bool) -> str:
    """What is wrong with columns that are not of numbers, each with a value of it, and what to do."""
    if len(words) == 1:
        ((name, value),) = words.items()
        whose = "" if owned else f", or, if it says whose examples these are, give --client {name}"
        what = f"the column {name!r} is not of numbers (e.g. {value!r}); leave it out ({leave_out(name)})"
    else:
        some = ", ".join(f"{n!r} (e.g. {v!r})" for n, v in words.items())
        whose = "" if owned else ", or, if one says whose examples these are, name it by --client"
        what = f"{len(words)} columns are not of numbers, {some}; leave them out ({leave_out(*words)})"
    return f"{what}, or put numbers for the words{whose}"


def _about_gaps(gaps: dict[str, np.ndarray]) -> str:
    """What is wrong with columns that lack numbers, and what to do."""
    first = min(gaps, key=lambda n: int(gaps[n][0]))
    others = "".join(f", {len(bad)} none in {n!r}" for n, bad in gaps.items() if n != first)
    wrong = f"example {gaps[first][0]} has no number in the column {first!r} ({len(gaps[first])} have none{others})"
    out = f"column{'s' * bool(others)} ({leave_out(*gaps)})"
    return f"{wrong}; fill in what is missing, or leave out those rows or the {out}"


def _numbered(y: np.ndarray, path: Path, agreed: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """(labels, their names): words are numbered as agreed, or as in the alphabet; numbers are left as they are."""
    words = [str(v) for v in y.tolist()] if y.dtype.kind in "UO" and y.ndim == 1 else []
    if blank := [i for i, w in enumerate(words) if w.lower() in MISSING]:
        wrong = f"example {blank[0]} has {words[blank[0]]!r} for a label, that is none ({len(blank)} have none)"
        remedy = "fill in what is missing, leave out those rows, or, if it is a class, give it another name"
        raise DataError(f"{path}: {wrong}; {remedy}")
    if not words or any(map(_is_number, words)):
        return y, None
    if agreed:
        if unknown := [w for w in words if w not in agreed]:
            raise DataError(
                f"{path}: there is no class {unknown[0]!r} ({len(unknown)} rows); {near(unknown[0], agreed)}"
            )
        return np.array([agreed.index(w) for w in words]), tuple(agreed)
    names, numbers = np.unique(words, return_inverse=True)
    if 2 * len(names) > len(words):
        wrong = f"the labels are {len(names)} different words in {len(words)} rows"
        raise DataError(f"{path}: {wrong}, which are no classes; say by --label if another column has them")
    return numbers, tuple(names.tolist())


def _numbers(column: np.ndarray) -> np.ndarray | None:
    """A column as floats, [n, m], NaN where one is missing; nothing if there are words or dates in it."""
    try:
        if column.dtype.kind in "mM":  # dates, which numpy would count
            return None
        if column.dtype == object:
            column = np.stack([np.asarray(v, np.float64).reshape(-1) for v in column])
        elif column.dtype.kind == "U":
            column = np.where(np.isin(np.char.lower(column), MISSING), "nan", column)
        return column.astype(np.float64).reshape(len(column), -1)
    except (ValueError, TypeError):
        return None


def first_text(values: np.ndarray) -> str:
    """The first value that is no number."""
    return str(next((v for v in values.flat if not _is_number(v)), values.flat[0]))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True
