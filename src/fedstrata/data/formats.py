"""The formats that publishers distribute, as plain arrays."""

import csv
import gzip
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from fedstrata.errors import DataError


def idx(path: Path) -> np.ndarray:
    """MNIST's own format, gzipped: a magic number, the lengths of the axes, the bytes."""
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as e:
        raise DataError(f"{path} is not a gzip file, or a broken one: {e}") from None
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or len(raw) < 4 + 4 * raw[3]:
        raise DataError(f"{path} is not in the idx format of bytes")
    shape = np.frombuffer(raw, ">i4", raw[3], 4)
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    if body.size != shape.prod(dtype=np.int64):
        raise DataError(f"{path} is cut short: {body.size} bytes where its head says {shape.prod(dtype=np.int64)}")
    return body.reshape(shape)


def cifar(paths: Sequence[Path], labels: int) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR's binary release: records of `labels` bytes, of which the last is the class, and 3072 of pixels."""
    size = labels + 3072
    raw = [np.fromfile(p, np.uint8) for p in paths]
    for path, r in zip(paths, raw, strict=True):
        if r.size == 0 or r.size % size:
            raise DataError(f"{path} has {r.size} bytes, which is no multiple of {size}: it is not a CIFAR batch")
    records = np.concatenate(raw).reshape(-1, size)
    return records[:, labels:].reshape(-1, 3, 32, 32), records[:, labels - 1].astype(np.int64)


def numbers(path: Path) -> np.ndarray:
    """A text file of numbers, one row a line, in float32."""
    try:
        return np.loadtxt(path, dtype=np.float32, ndmin=2)
    except ValueError as e:
        raise DataError(f"{path} is not a table of numbers: {e}") from None


@contextmanager
def _utf8(path: Path) -> Iterator[TextIO]:
    """A text file that is read as it goes, its line ends as they are."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield file
    except UnicodeDecodeError as e:
        raise DataError(f"{path} is not a text in UTF-8: {e}") from None


def news(path: Path, classes: int) -> tuple[list[str], np.ndarray]:
    """class from 1, title, text, ... a line, quoted: (texts, labels from 0)."""
    csv.field_size_limit(sys.maxsize)
    texts, labels = [], []
    with _utf8(path) as file:
        for number, row in enumerate(csv.reader(file), 1):
            if len(row) < 2 or not row[0].isdecimal() or not 1 <= int(row[0]) <= classes:
                raise DataError(f"{path}, row {number}: needs a class from 1 to {classes} and a text; got {row[:2]}")
            labels.append(int(row[0]) - 1)
            texts.append(" ".join(t for t in row[1:] if t))
    return texts, np.array(labels, np.int64)


def word_counts(path: Path) -> list[dict[str, int]]:
    """A review a line, `word:count ... #label#:positive`."""
    with _utf8(path) as file:
        lines = file.read().splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        pairs = [p.rpartition(":") for p in line.split()]
        words = [(w, c) for w, _, c in pairs if w != "#label#"]
        if not words or not all(w and c.isdecimal() for w, c in words):
            raise DataError(f"{path}, line {number}: is not a review of word:count pairs")
        found.append({w: int(c) for w, c in words})
    return found


def bag_of_words(reviews: Iterable[dict[str, int]], words: Sequence[str]) -> np.ndarray:
    """Which of the words each review has, [n, words], as 0 and 1."""
    place = {w: i for i, w in enumerate(words)}
    rows = [[place[w] for w in r if w in place] for r in reviews]
    bags = np.zeros((len(rows), len(words)), np.uint8)
    for bag, row in zip(bags, rows, strict=True):
        bag[row] = 1
    return bags


def common_words(reviews: Iterable[dict[str, int]], size: int) -> list[str]:
    """The words that most reviews have; ties in the order of the alphabet."""
    counts = Counter(w for r in reviews for w in r)
    return [w for w, _ in sorted(counts.items(), key=lambda p: (-p[1], p[0]))[:size]]


def image(path: Path, mode: str = "RGB") -> np.ndarray:
    """A picture as bytes, [channels, height, width]."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            if picture.mode[:1] in "IF":  # cut off at 255, nearly all of it would be white
                raise DataError(f"{path} has more than 8 bits a pixel ({picture.mode}); make it one of 8 bits first")
            pixels = np.asarray(picture.convert(mode))
    except (OSError, SyntaxError, UnidentifiedImageError) as e:  # PIL's word for broken chunks is SyntaxError
        raise DataError(f"{path} cannot be read as a picture: {e}") from None
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
