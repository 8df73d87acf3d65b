"""What hooks of parts must give, and the words for what goes wrong in them: whose, which one, in which round."""

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor

from fedstrata.errors import FedstrataError, PartError, in_short
from fedstrata.layout import Arrays


@contextmanager
def telling(where: str) -> Iterator[None]:
    """Within this block, what goes wrong in a hook of a part says where, e.g. in which round."""
    try:
        yield
    except PartError as e:
        raise PartError(f"{where}: {e}") from e.__cause__
    except FedstrataError:
        raise
    except Exception as e:
        if not _source(e):
            raise
        raise PartError(f"{where}: {told(e)}") from e


def told(e: Exception) -> str:
    """An error in one line: its kind, the hook that it came out of, and what it says."""
    if isinstance(e, PartError):
        return str(e)
    said = in_short(e)
    return said.replace(type(e).__name__, f"{type(e).__name__}{_source(e)}", 1)


def _source(e: Exception) -> str:
    """The part and its hook in which an error was raised, " in Nearest.weights"; nothing where it was in none."""
    for frame, _ in walk_tb(e.__traceback__):
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if hasattr(type(first), "slot"):  # parts alone have one
            return f" in {type(first).__name__}.{code.co_name}"
    return ""


def pair(part: Any, hook: str, said: Any, names: str) -> tuple[Any, Arrays]:
    """What a hook gave, if it is a tuple of something and of named tensors."""
    if isinstance(said, tuple) and len(said) == 2 and isinstance(said[1], dict):
        return said
    kinds = [type(v).__name__ for v in said] if isinstance(said, tuple) else []
    got = f"({', '.join(kinds)})" if kinds else type(said).__name__
    raise PartError(f"{type(part).__name__}.{hook} must return {names}; got {got}")


def shaped(part: Any, hook: str, said: Any, shape: tuple[int, ...], need: str, at: str = "") -> Tensor:
    """What a hook gave, if it is a tensor of this shape."""
    if isinstance(said, Tensor) and said.shape == shape:
        return said
    got = list(said.shape) if isinstance(said, Tensor) else type(said).__name__
    raise PartError(f"{type(part).__name__}.{hook} must give {need}, here {list(shape)}{at}; got {got}")


def moved(part: Any, hook: str, said: Any, old: Tensor) -> tuple[Tensor, Arrays]:
    """(a model, [P], like the one that the hook was given; state)."""
    w, state = pair(part, hook, said, "(model, state)")
    w = shaped(part, hook, w, old.shape, "a model, a tensor [P]")
    if w.dtype != old.dtype:
        raise PartError(f"{type(part).__name__}.{hook} makes a {w.dtype} model of a {old.dtype} one")
    return w, state


def named(part: Any, hook: str, said: Any) -> Arrays:
    """The named tensors that a hook gave."""
    if isinstance(said, dict):
        return said
    raise PartError(f"{type(part).__name__}.{hook} must return a dictionary of tensors; got {type(said).__name__}")


def rows(part: Any, hook: str, said: Any, k: int) -> Arrays:
    """The same, if each has a row for every client of the cohort."""
    for name, value in named(part, hook, said).items():
        shape = list(getattr(value, "shape", ()))
        if shape[:1] != [k]:
            raise PartError(f"{type(part).__name__}.{hook} must give {name!r} as [K, ...], here K = {k}; got {shape}")
    return said


def scalar(part: Any, hook: str, said: Any) -> Tensor:
    """The number that a hook gave, as a tensor, []."""
    if isinstance(said, Tensor) and said.dim() == 0:
        return said
    if isinstance(said, Real):
        return torch.as_tensor(said)
    got = f"a tensor {list(said.shape)}" if isinstance(said, Tensor) else type(said).__name__
    raise PartError(f"{type(part).__name__}.{hook} must give one number, a tensor []; got {got}")


def positions(part: Any, said: Any, count: int) -> Tensor:
    """The clients that a selection picked, [K]: whole numbers below their count, none twice."""
    chosen = torch.as_tensor(said)
    chosen = chosen if chosen.numel() else chosen.long()
    whole = chosen.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if chosen.dim() != 1 or not whole:
        got = f"a {chosen.dtype} tensor {list(chosen.shape)}"
    elif len(outside := chosen[(chosen < 0) | (chosen >= count)]):
        got = f"{int(outside[0])}"
    elif len(twice := (torch.bincount(chosen, minlength=count) > 1).nonzero()):
        got = f"{int(twice[0])} more than once"
    else:
        return chosen.long()
    need = f"positions among {count} clients, whole numbers from 0 to {count - 1}, each at most once"
    raise PartError(f"{type(part).__name__}.pick must give {need}; got {got}")
