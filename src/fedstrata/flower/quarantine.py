"""Nothing that a node sends reaches the model before it has been looked at: names, shapes, types, sizes, numbers.

Flower hands on whatever came. A reply that can be broadcast to the right shape, or has other numbers of bytes, would
poison a sum without a word.
"""

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from fedstrata.buffers import excused
from fedstrata.flower.records import Tree, flat, unpacked
from fedstrata.layout import Arrays

HEADER = 1024
"""Bytes that an array may take beyond its numbers."""

GREW = 10
"""A client may come to have so many times the examples that it enrolled with, while a run goes on."""


class Refused(Exception):
    """A reply that does not count, and why."""


def admitted(content: RecordDict, expected: Tree, asked: Mapping[str, Any]) -> tuple[Arrays, dict[str, Any]]:
    """(the tensors of a reply, its facts), if it is what was asked for; Refused says why it is not."""
    wanted = flat(expected)
    arrays = content.get("arrays")
    if not isinstance(arrays, ArrayRecord) or "facts" not in content:
        raise Refused("it is not a reply of fedstrata's: no arrays, or no facts")
    _names(set(arrays), set(wanted))
    for name, array in arrays.items():
        _kind(name, array, wanted[name])
    try:
        tensors, facts = unpacked(content)
    except (ValueError, TypeError, KeyError, EOFError, OSError) as e:
        raise Refused(f"it cannot be read: {e}") from None
    for name, t in tensors.items():  # what the bytes say, not what was written beside them
        if t.shape != wanted[name].shape or t.dtype != wanted[name].dtype:
            raise Refused(_differs(name, str(t.dtype), tuple(t.shape), wanted[name]))
    for name, value in asked.items():
        if facts.get(name) != value:
            raise Refused(f"it answers for {name} {facts.get(name)!r}, and was asked for {value!r}")
    return tensors, facts


def finite(tensors: Arrays, own: Arrays) -> None:
    """Refuse NaN and infinity, but where the server's own, by the same names, are not finite either."""
    for name, t in excused(tensors, own).items():
        if t.is_floating_point() and not bool(t.isfinite().all()):
            count = int((~t.isfinite()).sum())
            raise Refused(f"{name} has {count} of {t.numel()} values that are NaN or infinite")


def examples(claimed: Any, most: int, before: float | None = None) -> int:
    """The number of examples that a node says it has, if that can be."""
    if type(claimed) is not int or claimed < 0:
        raise Refused(f"its number of examples is {claimed!r}, which is no count")
    if claimed > most:
        raise Refused(f"it claims {claimed:,} examples; at most {most:,} are believed (max-examples)")
    if before is not None and claimed > GREW * max(before, 1):
        raise Refused(f"it claims {claimed:,} examples and enrolled with {before:,.0f}")
    return claimed


def labels(counts: Tensor, count: int) -> Tensor:
    """How many of its examples are of each class, if that adds up."""
    if counts.dim() != 1 or not bool((counts >= 0).all()) or float(counts.sum()) != count:
        raise Refused(f"its counts of classes do not add up to its {count:,} examples")
    return counts


def _names(got: set[str], wanted: set[str]) -> None:
    if missing := sorted(wanted - got):
        raise Refused(f"{missing[0]} is missing, as are {len(missing) - 1} others")
    if more := sorted(got - wanted):
        raise Refused(f"it has {more[0]!r}, which was not asked for")


def _kind(name: str, array: Array, wanted: Tensor) -> None:
    """Before anything is decoded: what is written beside the bytes, and how many there are."""
    kind = str(wanted.dtype).removeprefix("torch.")
    if tuple(array.shape) != tuple(wanted.shape) or array.dtype != kind:
        raise Refused(_differs(name, array.dtype, tuple(array.shape), wanted))
    size = torch.Size(wanted.shape).numel() * wanted.dtype.itemsize
    if not size <= len(array.data) <= size + HEADER:
        raise Refused(f"{name} has {len(array.data):,} bytes, where {size:,} and a header are expected")


def _differs(name: str, kind: str, shape: tuple[int, ...], wanted: Tensor) -> str:
    right = f"{str(wanted.dtype).removeprefix('torch.')} {list(wanted.shape)}"
    return f"{name} is {kind.removeprefix('torch.')} {list(shape)}, and should be {right}"
