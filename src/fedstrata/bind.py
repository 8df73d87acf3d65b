"""Run a module with other parameters and buffers than its own: functional_call without its checks, ten times faster."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Place = tuple[dict[str, Any], str]
"""A module's own dictionary, and a key of it."""


def places(model: nn.Module) -> dict[str, list[Place]]:
    """Where every parameter and buffer of a model lives, by its dotted name; tied ones live in several places."""
    named: dict[str, Place] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for own in (module._parameters, module._buffers):
            named |= {f"{prefix}.{key}" if prefix else key: (own, key) for key in own}
    shared: dict[int, list[Place]] = {}
    for own, key in named.values():
        shared.setdefault(id(own[key]), []).append((own, key))
    return {name: shared[id(own[key])] for name, (own, key) in named.items() if own[key] is not None}


@contextmanager
def bound(there: Mapping[str, list[Place]], values: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Within this block the model has these values; a name that it does not have is a KeyError.

    What it puts in their place itself, as `self.mean = ...` does, is in what is yielded once the block has ended.
    """
    before = [(name, own, key, own[key], value) for name, value in values.items() for own, key in there[name]]
    for _, own, key, _, value in before:
        own[key] = value
    put: dict[str, Any] = {}
    try:
        yield put
    finally:
        put |= {name: own.get(key) for name, own, key, _, given in before if own.get(key) is not given}
        for _, own, key, value, _ in before:
            own[key] = value


@contextmanager
def seen_by(module: nn.Module | None, look: Callable[[Tensor], None]) -> Iterator[None]:
    """Within this block `look` sees what goes into a module, if there is one to watch."""
    hook = module.register_forward_pre_hook(lambda _, args: look(args[0])) if module is not None else None
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


def is_heard(layer: nn.Module) -> bool:
    """Whether somebody listens to it, or changes what goes in or out."""
    kinds = "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"
    return any(getattr(layer, kind) for kind in kinds)
