"""What travels: nested dictionaries of tensors as Flower's records and back, and the facts that go with them."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedstrata.layout import Arrays

Tree = Mapping[str, "Tensor | Tree"]
"""Tensors by name, or trees of them."""


def packed(tree: Tree, facts: Mapping[str, Any]) -> RecordDict:
    """Tensors under names such as brief/local.0/c, and facts as JSON."""
    arrays = {n: Array(v.detach().cpu().contiguous().numpy()) for n, v in flat(tree).items()}
    return RecordDict({"arrays": ArrayRecord(arrays), "facts": ConfigRecord({"json": json.dumps(facts)})})


def unpacked(content: RecordDict) -> tuple[Arrays, dict[str, Any]]:
    """(the tensors by their long names, the facts), of the server; what nodes send is read by `quarantine`."""
    facts = json.loads(str(content["facts"]["json"]))
    arrays: ArrayRecord = content["arrays"]  # pyright: ignore[reportAssignmentType]
    return {n: torch.from_numpy(a.numpy().copy()) for n, a in arrays.items()}, facts


def flat(tree: Tree, head: str = "") -> Arrays:
    """The tensors of a tree under the names of the whole way to them."""
    found: Arrays = {}
    for name, v in tree.items():
        found |= {head + name: v} if isinstance(v, Tensor) else flat(v, f"{head}{name}/")
    return found


def below(head: str, arrays: Arrays) -> Arrays:
    """Those whose names begin so, without that."""
    return {n.removeprefix(f"{head}/"): v for n, v in arrays.items() if n.startswith(f"{head}/")}


def by_part(arrays: Arrays, parts: Mapping[str, Any]) -> dict[str, Arrays]:
    """What each of these parts has, by names such as local.0/c."""
    return {part: below(part, arrays) for part in parts}
