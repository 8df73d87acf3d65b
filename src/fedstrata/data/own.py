"""The user's own data: a file or a folder becomes a data set, or a sentence says what is wrong with it."""

import csv
import os
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedstrata.data.columns import CLIENT, Columns, Found, first_text, of_table
from fedstrata.data.examples import Dataset
from fedstrata.data.formats import image
from fedstrata.errors import DataError, near
from fedstrata.rng import rng

TEST_SHARE = 0.2
"""Of every client's examples, where a file brings none to test on."""

MOST_CLASSES = 1_000_000
"""A label beyond is no class: a model would get an output for each number below it."""

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def load_own(
    path: Path,
    label: str = "label",
    client: str = CLIENT,
    alone: bool = False,
    classes: Sequence[str] = (),
    without: Sequence[str] = (),
    features: Sequence[str] = (),
) -> Dataset:
    """An .npz, .csv or .parquet file, a folder of pictures by client and class, or a Hugging Face data set on disk.

    With `alone` all of it is one client's, whatever it says of clients: the data of a single node. `classes` are the
    words for labels in the order of their numbers; that of the alphabet unless given. `without` are columns that are
    left out; a single node need not have them. `features` is the order in which a table's other columns are taken.
    """
    if not path.exists():
        raise DataError(f"there is no file or folder {path}{_beside(path)}")
    found = _found(path, Columns(label, client, alone, classes, without, features))
    if without and not alone and not found.scaled:
        raise DataError(f"{path} is no table: it has no columns to leave out (--without {','.join(without)})")
    if alone:
        found = found._replace(owner=None)
        if not classes:
            _check_numbered(path, found)
    data = _dataset(path, found.x, found.y, found.owner, found.test)
    data = replace(data, names=found.names, counting=found.counting, columns=found.columns)
    if not alone:
        _check_classes(path, data)
    data = replace(data, classes=len(found.names)) if found.names is not None else data
    return data.standardised() if found.scaled else data


def _beside(path: Path) -> str:
    """The end of a sentence about a file that is not there: one beside it with nearly that name."""
    there = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    said = near(path.name, there)
    return f"; {said}" if said.startswith("did") else ""


def _check_numbered(path: Path, found: Found) -> None:
    """A node sees its own file alone, so words would not have the same numbers everywhere."""
    if found.scaled and found.names is not None:
        some = ", ".join(found.names[:3])
        order = f'classes = "{", ".join(found.names)}" in node.toml, with those that this node has none of too'
        raise DataError(f"{path}: the labels are words ({some}); say the order that all nodes have: {order}")


def _check_classes(path: Path, data: Dataset) -> None:
    """Two or more in all; a single node may well have one."""
    there = torch.cat((data.train[1], data.test[1]))
    if len(only := there.unique().tolist()) == 1:
        label = data.names[only[0]] if data.names is not None else only[0]
        need = "a classifier needs two classes or more; say by --label if another column has them"
        raise DataError(f"{path}: all {len(there)} labels are {label!r}; {need}")


def _found(path: Path, called: Columns) -> Found:
    """By the reader that suits."""
    if path.is_dir():
        hugging = (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()
        return _of_hugging_face(path, called) if hugging else _of_pictures(path)
    kinds = {".npz": _of_npz, ".csv": _of_csv, ".parquet": _of_parquet}
    if path.suffix.lower() not in kinds:
        raise DataError(f"{path} is not a file that can be read as data; give .npz, .csv or .parquet, or a folder")
    return kinds[path.suffix.lower()](path, called)


def _of_npz(path: Path, called: Columns) -> Found:
    """x, y and perhaps client; perhaps x_test and y_test."""
    arrays = _arrays(path)
    y = next((n for n in ("y", called.label) if n in arrays), None)
    if "x" not in arrays or y is None:
        raise DataError(f"{path} needs the arrays x and y; it has {', '.join(sorted(arrays)) or 'none'}")
    test = None
    if len(given := arrays.keys() & {"x_test", "y_test"}) == 1:
        raise DataError(f"{path} has {given.pop()} alone; give both x_test and y_test, or neither")
    if given:
        test = _features(arrays["x_test"], path, "x_test"), _labels(arrays["y_test"], path, "y_test")
    return Found(_features(arrays["x"], path, "x"), arrays[y], arrays.get(called.client), test)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file."""
    try:
        file = np.load(path, allow_pickle=False)
        arrays = dict(file) if isinstance(file, np.lib.npyio.NpzFile) else None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as e:
        raise DataError(f"{path} cannot be read as arrays: {e}") from None
    if arrays is None:
        raise DataError(f"{path} holds a single array; it needs x and y, as numpy.savez writes them")
    return arrays


def _features(x: np.ndarray, path: Path, what: str) -> np.ndarray:
    """Numbers in float32, a row or more for each example."""
    if x.dtype.kind not in "biuf" or x.ndim < 2:
        raise DataError(f"{path}: {what} must be real numbers, [examples, ...]; got {x.dtype} of shape {x.shape}")
    return x.astype(np.float32)


def _of_csv(path: Path, called: Columns) -> Found:
    """A column of labels, perhaps one of clients, and numbers."""
    lines = _lines(path)
    if len(lines) < 2:
        there = f"{len(lines)} line{'s' * (len(lines) != 1)}"
        raise DataError(f"{path} needs a line of column names and lines of values; it has {there}")
    names, body = [n.strip() for n in lines[0][1]], lines[1:]
    if len(names) == 1 and (other := next((mark for mark in ";\t|" if mark in names[0]), None)):
        raise DataError(f"{path} has {other!r} between its values; save it with commas")
    if twice := [n for n in names if names.count(n) > 1]:
        raise DataError(f"{path} has two columns called {twice[0]!r}; give them different names")
    for number, row in body:
        if len(row) != len(names):
            raise DataError(f"{path}, line {number}: {len(row)} values where there are {len(names)} columns")
    return of_table(path, {n: np.array([r[i].strip() for _, r in body]) for i, n in enumerate(names)}, called)


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The rows that are not blank, each with the number of the line where it ends."""
    rows: list[tuple[int, list[str]]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows.extend((reader.line_num, row) for row in reader)
    except UnicodeDecodeError:
        raise DataError(f"{path} is not in UTF-8; save it as CSV in UTF-8") from None
    except csv.Error as e:
        wrong = "a quotation mark opens here and never closes" if "end of data" in str(e) else str(e)
        begun = rows[-1][0] + 1 if rows else 1
        raise DataError(f"{path}, line {begun}: cannot be read as CSV: {wrong}") from None
    except OSError as e:
        raise DataError(f"{path} cannot be read as CSV: {e}") from None
    return [(number, row) for number, row in rows if any(cell.strip() for cell in row)]


def _of_parquet(path: Path, called: Columns) -> Found:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise DataError("Parquet files need pyarrow: pip install 'fedstrata[parquet]'") from None
    try:
        table = parquet.read_table(path)
    except (ArrowInvalid, OSError) as e:
        raise DataError(f"{path} cannot be read as Parquet: {e}") from None
    return of_table(path, {n: np.asarray(table[n]) for n in table.column_names}, called)


def _of_hugging_face(path: Path, called: Columns) -> Found:
    try:
        from datasets import DatasetDict, load_from_disk  # pyright: ignore  an extra
    except ImportError:
        raise DataError("a Hugging Face folder needs datasets: pip install 'fedstrata[huggingface]'") from None
    loaded: Any = load_from_disk(str(path))
    table = loaded["train"] if isinstance(loaded, DatasetDict) else loaded
    return of_table(path, {n: np.asarray(table[n]) for n in table.column_names}, called)


def _of_pictures(folder: Path) -> Found:
    """folder/client/class/picture, or folder/class/picture; all pictures of one size."""
    files, depth = _pictures(folder)
    folders = {d for d in folder.glob("/".join("*" * (depth - 1))) if d.is_dir() and not d.name.startswith(".")}
    classes = sorted({d.name for d in folders})  # an empty one too: another client may have pictures of it
    pixels = [image(p) for p in files]
    if len(shapes := {p.shape for p in pixels}) > 1:
        some = ", ".join(f"{w}x{h}" for _, h, w in sorted(shapes)[:3])
        raise DataError(f"the pictures in {folder} have different sizes ({some}); make them one size first")
    x = (np.stack(pixels).astype(np.float32) / 255 - 0.5) / 0.5
    y = np.array([classes.index(p.parent.name) for p in files])
    owner = np.array([p.parents[1].name for p in files]) if depth == 3 else None
    return Found(x, y, owner, names=tuple(classes))


def _pictures(folder: Path) -> tuple[list[Path], int]:
    """(all pictures but what systems and editors hide, in order; the level that they are on).

    Nobody looks further than the first one that is out of place, or than a level below those where pictures may be.
    """
    need, files, depth = f"{folder} needs pictures as client/class/picture or class/picture", list[Path](), 0
    for at, below, names in os.walk(folder):
        level = len(Path(at).relative_to(folder).parts) + 1
        below[:] = [n for n in below if not n.startswith(".") and level <= 3]
        here = [p for n in names if not n.startswith(".") and (p := Path(at, n)).suffix.lower() in PICTURES]
        if here := [p for p in here if p.is_file()]:
            if level not in (2, 3) or level != (depth or level):
                raise DataError(f"{need}, all of them alike; {here[0].relative_to(folder)} is elsewhere")
            depth = level
            files += here
    if not files:
        raise DataError(f"{need}; found none")
    return sorted(files), depth


def _dataset(path: Path, x: np.ndarray, y: np.ndarray, owner: np.ndarray | None, test: Any) -> Dataset:
    """Checked, and cut into training and test where it comes in one piece."""
    y = _labels(y, path, "the labels")
    if not len(x) == len(y) == (len(y) if owner is None else len(owner)):
        others = f", {len(owner)} clients" if owner is not None else ""
        raise DataError(f"{path} has {len(x)} examples, {len(y)} labels{others}; they must be as many")
    if bad := np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1)).tolist():
        raise DataError(f"{path}: example {bad[0]} has features that are NaN or infinite ({len(bad)} do); clean them")
    if owner is not None:
        _check_clients(owner, path)
    if test is not None and (test[0].shape[1:] != x.shape[1:] or len(test[0]) != len(test[1])):
        wrong = f"{len(test[0])} of shape {test[0].shape[1:]} with {len(test[1])} labels"
        raise DataError(f"{path}: the test examples do not fit those of shape {x.shape[1:]} to train on; got {wrong}")
    classes = int(max(y.max(), test[1].max() if test is not None else 0)) + 1
    if test is None:
        rows = _test_rows(_classes(y) if owner is None else owner)
        test = x[rows], y[rows]
        x, y, owner = x[~rows], y[~rows], owner[~rows] if owner is not None else None
    train, tested = ((torch.from_numpy(a), torch.from_numpy(b)) for a, b in ((x, y), test))
    return Dataset(train, tested, classes, owner=owner)


def _check_clients(owner: np.ndarray, path: Path) -> None:
    """One client for every example, and two or more in all."""
    if owner.ndim != 1:
        raise DataError(f"{path} needs one client for each example; got clients of shape {owner.shape}")
    if blank := [i for i, v in enumerate(owner.tolist()) if v is None or v == "" or v != v]:
        raise DataError(f"{path}: example {blank[0]} does not say which client it is of ({len(blank)} do not)")
    if len(np.unique(owner)) < 2:
        raise DataError(f"{path} has one client only, {str(owner[0])!r}; a federation needs two or more")


def _classes(y: np.ndarray) -> np.ndarray:
    """What the test takes a fifth of, [n]: each class; those too rare to give any are one together, -1."""
    _, which, count = np.unique(y, return_inverse=True, return_counts=True)
    return np.where(np.rint(TEST_SHARE * count)[which] > 0, which, -1)


def _test_rows(groups: np.ndarray) -> np.ndarray:
    """A fifth of every group, at random but always the same, [n] of true and false; a group keeps one to train on."""
    draw = rng(0, "own test")
    chosen = np.zeros(len(groups), bool)
    for group in np.unique(groups):
        rows = draw.permutation(np.flatnonzero(groups == group))
        chosen[rows[: min(round(TEST_SHARE * len(rows)), len(rows) - 1)]] = True
    if not chosen.any():
        raise DataError(f"{len(groups)} examples are too few to keep a fifth of each client's or class's for the test")
    return chosen


def _labels(y: np.ndarray, path: Path, what: str) -> np.ndarray:
    """Whole numbers from 0."""
    if not y.size:
        raise DataError(f"{path} has no examples: {what} are empty")
    try:
        numbers = y.astype(np.float64)
    except (ValueError, TypeError):
        raise DataError(
            f"{path}: {what} must be whole numbers from 0; got {first_text(y)!r}. Number the classes"
        ) from None
    if numbers.ndim != 1 or not np.isfinite(numbers).all() or (numbers != np.rint(numbers)).any() or numbers.min() < 0:
        fine = np.isfinite(numbers) & (numbers == np.rint(numbers)) & (numbers >= 0)
        wrong = numbers[~fine][0] if numbers.ndim == 1 else f"shape {numbers.shape}"
        raise DataError(f"{path}: {what} must be whole numbers from 0, one an example; got {wrong}")
    if numbers.max() >= MOST_CLASSES:
        raise DataError(f"{path}: {what} go up to {numbers.max():.0f}; number the classes from 0, without gaps")
    return numbers.astype(np.int64)
