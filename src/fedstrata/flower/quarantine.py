"""Nothing that a node sends reaches the model before it has been looked at: names, shapes, types, sizes, numbers.

Flower hands on whatever came. A reply that can be broadcast to the right shape, or has other numbers of bytes, would
poison a sum without a word. What cannot be read, however it is broken, is refused here and ends no run.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from math import isfinite
from reprlib import Repr
from sys import float_info
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from torch import Tensor

from fedstrata.buffers import excused
from fedstrata.errors import in_short
from fedstrata.flower.records import Tree, flat
from fedstrata.layout import Arrays

HEADER = 1024
"""Bytes that an array may take beyond its numbers."""

GREW = 10
"""A client may come to have so many times the examples that it enrolled with, while a run goes on."""

LONGEST = 300
"""Letters of a sentence about what a node sent."""

CUT = Repr()
CUT.maxstring = CUT.maxother = 80


class Span(NamedTuple):
    """What a number can be."""

    low: float
    high: float
    whole: bool = False

    def __str__(self) -> str:
        ends = [f"{word} {v:g}" for word, v in (("from", self.low), ("to", self.high)) if abs(v) < float_info.max]
        return " ".join(["whole numbers" if self.whole else "numbers", *ends])


LARGE, HUGE = 1e15, 1e30
"""What no vector of a model and no measurement comes to: squares of the one are finite in float32."""

CAN_BE = {
    "delta": Span(-LARGE, LARGE),
    "uploads": Span(-LARGE, LARGE),
    "buffers": Span(-float_info.max, float_info.max),  # a mask may be as low as numbers are
    "buffers/running_var": Span(0, float_info.max),
    "buffers/num_batches_tracked": Span(0, LARGE),
    "stats": Span(-HUGE, HUGE),
    "stats/loss": Span(0, HUGE),
    "stats/accuracy": Span(0, 1),
    "stats/loss_variance": Span(0, HUGE),
    "stats/gradient_variance": Span(0, HUGE),
    "stats/last_layer_gradient_variance": Span(0, HUGE),
    "shares": Span(0, 1),
}
"""Whatever nodes send or measure: by its name, else by the first word of it."""


class Refused(Exception):
    """A reply that does not count, and why, in a sentence that is short and fit to be printed whatever was sent."""

    def __init__(self, why: str):
        super().__init__(printable(why))


class NotFinite(Refused):
    """For NaN or infinity."""


def printable(text: str) -> str:
    """A text of somebody else's without control characters, cut where it is long."""
    plain = "".join(c if c.isprintable() else "?" for c in text[: LONGEST + 1])
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}..."


Said = dict[str, Any]
"""The facts of a reply."""


def admitted(
    content: RecordDict, expected: Tree | Callable[[Said], Tree], asked: Mapping[str, Any]
) -> tuple[Arrays, Said]:
    """(the tensors of a reply, its facts), if it is what was asked for; Refused says why it is not.

    What tensors there should be may depend on the facts.
    """
    arrays, facts = content.get("arrays"), content.get("facts")
    if not isinstance(arrays, ArrayRecord) or not isinstance(facts, ConfigRecord):
        raise Refused("it is not a reply of fedstrata's: no arrays, or no facts")
    with _reading():
        said = json.loads(str(facts["json"]))
    if not isinstance(said, dict):
        raise Refused(f"it cannot be read: its facts are a {type(said).__name__}")
    wanted = flat(expected(said) if callable(expected) else expected)
    _names(set(arrays), set(wanted))
    tensors = {name: _tensor(name, array, wanted[name]) for name, array in arrays.items()}
    for name, value in asked.items():
        if said.get(name) != value:
            raise Refused(f"it answers for {name} {CUT.repr(said.get(name))}, and was asked for {value!r}")
    return tensors, said


def sound(tensors: Arrays, own: Arrays, steps: int = 1) -> None:
    """Refuse NaN, infinity and what cannot be, but where the server's own, by the same names, are not finite either."""
    tables = ("class_moments", "class_features")  # whose first column has the shares of the classes
    shares = {f"shares/{n}": tensors[f"stats/{n}"][:, 0] for n in tables if f"stats/{n}" in tensors}
    known = CAN_BE | {"stats/steps": Span(1, steps, whole=True)}
    for name, t in (excused(tensors, own) | shares).items():
        head, _, rest = name.partition("/")
        _within(name, t, known.get(f"{head}/{rest.rpartition('.')[2]}", known[head]))


def _within(name: str, t: Tensor, can: Span) -> None:
    t = torch.view_as_real(t) if t.is_complex() else t
    if t.dtype == torch.bool or not t.numel():
        return
    low, high = (float(v) for v in t.aminmax())
    if not (isfinite(low) and isfinite(high)):
        raise NotFinite(f"{name} has {int((~t.isfinite()).sum())} of {t.numel()} values that are NaN or infinite")
    if not can.low <= low <= high <= can.high or (can.whole and bool((t != t.round()).any())):
        raise Refused(f"{name} has {low:g}" + f" to {high:g}" * (high > low) + f", and can have {can}")


def examples(claimed: Any, most: int, before: int | None = None) -> int:
    """The number of examples that a node says it has, if that can be."""
    if type(claimed) is not int or claimed < 0:
        raise Refused(f"its number of examples is {CUT.repr(claimed)}, which is no count")
    if claimed > most:
        raise Refused(f"it claims {claimed:,} examples; at most {most:,} are believed (max-examples)")
    if before is not None and claimed > GREW * max(before, 1):
        raise Refused(f"it claims {claimed:,} examples and enrolled with {before:,}")
    return claimed


def labels(counts: Tensor, count: int) -> Tensor:
    """How many of its examples are of each class, if that adds up."""
    if not bool((counts >= 0).all() and (counts == counts.round()).all()) or float(counts.sum()) != count:
        raise Refused(f"its counts of classes do not add up to its {count:,} examples")
    return counts


@contextmanager
def _reading() -> Iterator[None]:
    """Whatever goes wrong where bytes are read is a refusal."""
    try:
        yield
    except Exception as e:
        raise Refused(f"it cannot be read: {in_short(e)}") from None


def _names(got: set[str], wanted: set[str]) -> None:
    if missing := sorted(wanted - got):
        raise Refused(f"{missing[0]} is missing, as are {len(missing) - 1} others")
    if more := sorted(got - wanted):
        raise Refused(f"it has {more[0]!r}, which was not asked for")


def _tensor(name: str, array: Array, wanted: Tensor) -> Tensor:
    """What an array holds; looked at first are what is written beside the bytes, how many there are, and their head."""
    kind = str(wanted.dtype).removeprefix("torch.")
    if tuple(array.shape) != tuple(wanted.shape) or array.dtype != kind:
        raise Refused(_differs(name, array.dtype, tuple(array.shape), wanted))
    size = wanted.numel() * wanted.dtype.itemsize
    if not size <= len(array.data) <= size + HEADER:
        raise Refused(f"{name} has {len(array.data):,} bytes, where {size:,} and a header are expected")
    with _reading():
        file = BytesIO(array.data)
        if array.stype != "numpy.ndarray" or npy.read_magic(file) != (1, 0):
            raise ValueError("it is not an array as numpy writes it")
        shape, by_column, dtype = npy.read_array_header_1_0(file)
    if shape != tuple(wanted.shape) or dtype != np.dtype(kind) or by_column:
        raise Refused(_differs(name, str(dtype), shape, wanted))
    if len(array.data) - file.tell() != size:
        raise Refused(f"{name} has {len(array.data) - file.tell():,} bytes beyond its header, not {size:,}")
    return torch.from_numpy(np.ndarray(shape, dtype, array.data, file.tell()).copy())


def _differs(name: str, kind: str, shape: tuple[int, ...], wanted: Tensor) -> str:
    right = f"{str(wanted.dtype).removeprefix('torch.')} {list(wanted.shape)}"
    return f"{name} is {kind.removeprefix('torch.')} {list(shape)}, and should be {right}"
