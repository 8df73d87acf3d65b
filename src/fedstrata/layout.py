"""Layers in a flat vector: where each one lives, its norm, its cosines, its values spread over its parameters."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from itertools import accumulate, pairwise
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedstrata.errors import ModelError, near

Arrays = dict[str, Tensor]
"""All state, briefs, memories and uploads: named tensors and nothing else."""

State = dict[str, Arrays]
"""Arrays by part: {"local.0": {"c": ...}, "shrink.0": {}}. Checkpointed and sent as they are."""

Grain = Literal["tensor", "layer", "model"]
"""How finely the flat vector is cut: every tensor, every module's tensors together, or not at all."""

CPU = torch.device("cpu")

BLOCK = 1 << 18
"""Numbers reduced at a time, over all clients: in float64 two mebibytes, which stay in the cache."""


@dataclass(frozen=True)
class Layout:
    """Where each layer lives in a flat vector of the P trainable parameters.

    Frozen parameters and buffers are outside it. Tied weights are one tensor, under their first name;
    `aliases` pairs every further name with that one. `names` is the whole state_dict in its order.
    """

    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    layers: tuple[str, ...]
    lengths: tuple[int, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        """One layer for each module that owns trainable parameters."""
        named = {n: p for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
        if not named:
            raise ModelError(f"{type(model).__name__} has no trainable parameters, so there is nothing to federate")
        dtypes = sorted({str(p.dtype) for p in named.values()})
        if len(dtypes) > 1:
            raise ModelError(
                f"the parameters of {type(model).__name__} have several types, {', '.join(dtypes)}; use one"
            )
        return cls.of_tensors(named, model.state_dict())

    @classmethod
    def of_tensors(cls, named: Mapping[str, Tensor], names: Iterable[str] = ()) -> "Layout":
        """One layer for each dotted prefix; tensors on the same storage are one. `names` may list buffers too."""
        first: dict[object, str] = {}
        aliases = tuple((n, first[key]) for n, t in named.items() if first.setdefault(key := _storage(n, t), n) != n)
        if bent := [n for n in first.values() if named[n].is_complex()]:
            pairs = "make it pairs of real numbers, and take torch.view_as_complex of them in forward"
            raise ModelError(f"the parameter {bent[0]!r} is complex; {pairs}")
        _refuse_overlaps({n: named[n] for n in first.values()})
        layers: dict[str, list[str]] = {}
        for name in first.values():
            layers.setdefault(name.rpartition(".")[0] or "(root)", []).append(name)
        tensors = tuple((n, tuple(named[n].shape)) for names in layers.values() for n in names)
        lengths = tuple(sum(named[n].numel() for n in names) for names in layers.values())
        dtype = reduce(torch.promote_types, (t.dtype for t in named.values()))
        device = next(iter(named.values())).device
        return cls(tensors, tuple(layers), lengths, aliases, dtype, device, tuple(names) or tuple(named))

    def at(self, grain: Grain) -> "Layout":
        """The same vector cut tensor by tensor, layer by layer, or not at all."""
        if grain == "layer":
            return self
        if grain not in self.memo:
            self.memo[grain] = self._cut(grain)
        return self.memo[grain]

    def _cut(self, grain: Grain) -> "Layout":
        if grain == "model":
            return replace(self, layers=("(model)",), lengths=(self.size,))
        return replace(self, layers=tuple(n for n, _ in self.tensors), lengths=tuple(prod(s) for _, s in self.tensors))

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What was worked out of this layout once, and is asked for in every round; it is no part of the value."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def to(self, device: torch.device | str) -> "Layout":
        """The same layout for vectors that live on another device."""
        return replace(self, device=torch.device(device))

    @cached_property
    def size(self) -> int:
        """P, the number of trainable parameters."""
        return sum(self.lengths)

    @property
    def depth(self) -> int:
        """L, the number of layers at this grain."""
        return len(self.layers)

    def norms(self) -> tuple[bool, ...]:
        """Which tensors scale or shift a normalisation: all tensors of their layer have at most one dimension."""
        shapes, flat = dict(self.tensors), dict[str, bool]()
        for name, shape in [*self.tensors, *((alias, shapes[n]) for alias, n in self.aliases)]:
            owner = name.rpartition(".")[0]
            flat[owner] = flat.get(owner, True) and len(shape) == 1
        return tuple(flat[n.rpartition(".")[0]] for n, _ in self.tensors)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Begin and end of each layer in the vector."""
        return pairwise(accumulate(self.lengths, initial=0))

    def zeros(self) -> Tensor:
        """A vector of zeros, [P]."""
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)

    def full(self, value: float) -> Tensor:
        """One scalar for each layer, [L], in float64 as all scalars are."""
        return torch.full((self.depth,), value, dtype=torch.float64, device=self.device)

    def _reduce(self, sums: Callable[..., Tensor], *xs: Tensor) -> Tensor:
        """Add up `sums(*xs)`, which sums over the last axis, within layers: [..., P] -> [..., L], in float64.

        A block is read from memory once and stays in the cache for all that is done with it.
        """
        rows = max(prod(x.shape[:-1]) for x in xs)
        block = BLOCK if xs[0].device.type == "cpu" else 64 * BLOCK  # an accelerator waits for orders, not for memory
        width = max(1, block // max(1, rows))

        def total(a: int, b: int) -> Tensor:
            cuts = list(pairwise([*range(a, b, width), b])) or [(a, b)]
            parts = [sums(*(x[..., i:j].double() for x in xs)) for i, j in cuts]
            return torch.stack(parts, -1).sum(-1) if len(parts) > 1 else parts[0]

        return torch.stack([total(a, b) for a, b in self.spans()], -1)

    def total(self, x: Tensor) -> Tensor:
        """Sum within each layer, [..., P] -> [..., L]."""
        return self._reduce(lambda a: a.sum(-1), x)

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """Inner product within each layer, [..., L]."""
        return self._reduce(_dots, x, y)

    def norm(self, x: Tensor) -> Tensor:
        """Euclidean norm of each layer, [..., L]."""
        return self._reduce(_squares, x).sqrt()

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Euclidean norm of each layer of x - y, [..., L], without making x - y."""
        return self._reduce(lambda a, b: _squares(a - b), x, y).sqrt()

    def apart(self, x: Tensor) -> Tensor:
        """Euclidean distance of each layer of K vectors to their mean, [K, P] -> [K, L], without making the mean."""
        return self._reduce(lambda a: _squares(a - a.mean(0)), x).sqrt()

    def cos(self, x: Tensor, y: Tensor, when_zero: float = 0.0, moved: bool = False) -> Tensor:
        """Cosine within each layer, [..., L], clipped to [-1, 1]; `when_zero` where either vector is zero.

        With `moved` it is that of y + x and y, without making y + x. x is read once.
        """

        def both(a: Tensor, b: Tensor) -> Tensor:
            a = a + b if moved else a
            return torch.stack([_squares(a), _dots(a, b)])

        squares, dots = self._reduce(both, x, y)
        size = squares.sqrt() * self.norm(y)
        return torch.where(size > 0, dots / size.clamp_min(1e-300), when_zero).clamp(-1, 1)

    def spread(self, v: Tensor) -> Tensor:
        """Repeat one value a layer over its parameters, [..., L] -> [..., P]."""
        v = v.to(self.dtype)
        return torch.cat([v[..., i : i + 1].expand(*v.shape[:-1], n) for i, n in enumerate(self.lengths)], -1)

    def mix(self, weights: Tensor, x: Tensor) -> Tensor:
        """Weighted sum over clients, layer by layer: [K, L], [K, P] -> [P]."""
        return torch.cat([weights[:, i].to(x.dtype) @ x[:, a:b] for i, (a, b) in enumerate(self.spans())])

    def flatten(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """The vector of these named tensors, [P]; names and shapes must be the layout's."""
        shapes = dict(self.tensors)
        for name, shape in (shapes | {alias: shapes[n] for alias, n in self.aliases if alias in arrays}).items():
            if name not in arrays:
                raise ModelError(f"the parameter {name!r} is missing; {near(name, arrays)}")
            if tuple(arrays[name].shape) != shape:
                raise ModelError(f"{name!r} has shape {tuple(arrays[name].shape)} where the model has {shape}")
            if arrays[name].is_complex():
                raise ModelError(f"{name!r} is complex where the model has real numbers")
        own = {n for n, _ in self.tensors} | {n for n, _ in self.aliases}
        if extra := [n for n in arrays if n not in own]:
            raise ModelError(f"the model has no trainable parameter {extra[0]!r}; {near(extra[0], own)}")
        return torch.cat([arrays[n].detach().to(self.device, self.dtype).reshape(-1) for n, _ in self.tensors])

    def unflatten(self, w: Tensor) -> Arrays:
        """Named views into one or several vectors, [..., P], aliases included: for modules and for state_dicts."""
        pieces = w.split([prod(s) for _, s in self.tensors], -1)
        named = {n: p.unflatten(-1, s) if s else p[..., 0] for (n, s), p in zip(self.tensors, pieces, strict=True)}
        return named | {alias: named[n] for alias, n in self.aliases}


def _squares(a: Tensor) -> Tensor:
    """Sum of squares over the last axis, without making them."""
    return torch.linalg.vector_norm(a, dim=-1).square()


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner products over the last axis."""
    return a @ b if b.dim() == 1 else (a * b).sum(-1)


def _refuse_overlaps(named: Mapping[str, Tensor]) -> None:
    """Tensors that share part of a storage, or view it differently, would come untied in a flat vector."""
    ends: dict[int, tuple[int, str]] = {}
    places = [(t.data_ptr(), n, t) for n, t in named.items() if t.numel() and not t.is_meta]
    for begin, name, t in sorted(places, key=lambda p: p[0]):
        storage = t.untyped_storage().data_ptr()
        end, other = ends.get(storage, (0, ""))
        if begin < end:
            raise ModelError(
                f"{name!r} is another view of {other!r}'s storage; tie such weights in the model's forward"
            )
        span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
        ends[storage] = begin + span * t.element_size(), name


def _storage(name: str, t: Tensor) -> object:
    """What two names share when they are tied; an empty or meta tensor is only itself."""
    if t.numel() == 0 or t.is_meta:
        return name
    return t.device, t.data_ptr(), tuple(t.shape), t.stride()
