"""The server's step as a function of state_dicts, for people with a training loop of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.core import Cohort, Local, Proxy, Recipe, State
from fedstrata.errors import DataError, ModelError, NeedError, check, near
from fedstrata.layout import Arrays, Layout
from fedstrata.parse import parse_recipe
from fedstrata.server import OnNonFinite, Replies, Server, close_round, screen
from fedstrata.values import fit

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""How names of buffers end, where nobody says which they are."""

TABLES = ("labels", "class_features", "class_moments")
"""Measurements of every class, in as many numbers as the first reply has; others are one number, or one a parameter."""

VECTORS = ("gradient", "trained_gradient")

OTHER_STATE = "give the state of the round before, or none in the first"
"""What to do about a state that does not fit."""


@dataclass(frozen=True)
class Reply:
    """What one client sent back."""

    client: int
    model: Mapping[str, Any]  # name -> tensor or array, the names of the model it was sent
    examples: float
    stats: Mapping[str, Any] = field(default_factory=dict)  # "labels", "variance", "steps", "loss", ...
    uploads: Mapping[str, Any] = field(default_factory=dict)  # what the recipe's local parts report, by name


@dataclass(frozen=True)
class Outcome:
    """What the server makes of a round."""

    model: dict[str, Any]  # the names, types and kinds of array that were given
    state: State  # hand it back in the next round
    notes: Arrays  # "weights" [K, L], "gamma" [L], ...; clients in the order of their ids
    layers: tuple[str, ...]
    dropped: list[int]  # clients that did not count: NaN or infinity in their reply, or no examples


def server_step(
    recipe: Recipe | str,
    model: Mapping[str, Any],
    replies: Sequence[Reply],
    state: State | None = None,
    population: int | None = None,
    proxy: Proxy | None = None,
    lr: float | None = None,
    seed: int = 0,
    buffers: Sequence[str] | None = None,
    on_nonfinite: OnNonFinite = "drop",
) -> Outcome:
    """One round of a recipe's server half: from the model that the clients started from and their replies.

    Layers come from the dotted prefix of the names. Running statistics and counters are buffers, or what `buffers`
    names. `population` counts all clients; unless given, the highest client id seen so far plus one. It may grow: what
    is a mean over all clients counts newcomers in. `lr` is the clients' learning rate, for the methods that need it;
    `seed` is for those that draw.
    """
    given: Recipe = parse_recipe(recipe) if isinstance(recipe, str) else fit(Recipe, recipe, "recipe")
    algorithm = replace(given, finish=())  # what is done once, after the last round, is no round's business
    algorithm.check(algorithm.needs - ({"proxy"} if proxy is None else set()))
    check(lr is None or lr > 0, f"lr, the clients' learning rate, must be above 0; got {lr}")
    named = _tensors(model)
    trained, kept = _cut(named, buffers)
    layout = Layout.of_tensors(trained, named)
    ordered = sorted(replies, key=lambda r: r.client)
    server, size = _begun(algorithm, layout, layout.flatten(trained), kept, ordered, state, population)
    heard, number = _heard(algorithm, layout, server.model, kept, ordered), server.number
    cohort = Cohort(layout, heard.ids, heard.stats, server.model, size, number)
    usable, dropped = (
        _counted(*screen(heard, number, on_nonfinite, algorithm, cohort, kept)) if ordered else (heard, [])
    )
    server, notes = close_round(algorithm, server, cohort, usable, proxy, lr=lr, seed=seed)
    memory = {"population": torch.tensor(size), "round": torch.tensor(server.number)}
    return Outcome(_back(model, server), server.state | {"server": memory}, notes, layout.layers, dropped)


def _begun(
    recipe: Recipe,
    layout: Layout,
    w: Tensor,
    kept: Arrays,
    replies: Sequence[Reply],
    state: State | None,
    population: int | None,
) -> tuple[Server, int]:
    """(the server before the round, as the last one left it, N); with room for every client that replied."""
    seen, number = _before(recipe, layout, state) if state else (0, 0)
    size = population or max([seen, *(r.client + 1 for r in replies)])
    check(size >= len(replies), f"population is {size}, and {len(replies)} clients replied; it counts all clients")
    parts = {n: s for n, s in state.items() if n != "server"} if state else recipe.init(layout, size)
    if state and size != seen:
        parts = recipe.joined(parts, seen / size)
    table = torch.zeros(max([size, *(r.client + 1 for r in replies)]), dtype=torch.float64)
    return Server(layout, w, kept, parts, {"examples": table}, number), size


def _before(recipe: Recipe, layout: Layout, state: State) -> tuple[int, int]:
    """(N, the number of the round) as a state says, if it is one of this recipe and model."""
    for name in ("server", *recipe.parts()):
        if name not in state:
            raise DataError(f"the state has no {name!r}, which this recipe leaves; {OTHER_STATE}")
    seen, number = (int(state["server"][n]) for n in ("population", "round"))
    for name, part in recipe.parts().items():
        for key, fresh in part.init(layout.to("meta"), seen).items():  # shapes alone, which take no memory
            old, table = state[name].get(key), fresh.dim() > 0 and len(fresh) == seen
            if old is None:
                raise DataError(f"the state of {name!r} has no {key!r}, as {type(part).__name__} keeps; {OTHER_STATE}")
            if (old.shape[1:], fresh.dim()) != (fresh.shape[1:], old.dim()) or not (table or old.shape == fresh.shape):
                shapes = f"shape {tuple(old.shape)}, where the model needs {tuple(fresh.shape)}"
                raise DataError(
                    f"the state of {name!r}, {type(part).__name__}, has a {key!r} of {shapes}; {OTHER_STATE}"
                )
    return seen, number


def _back(model: Mapping[str, Any], server: Server) -> dict[str, Any]:
    """The server's model under the names, and as the kinds of arrays, that were given."""
    whole = server.layout.unflatten(server.model) | server.buffers
    back = {n: _like(whole[n], given) for n, given in model.items()}
    return back | {alias: back[n] for alias, n in server.layout.aliases}


def _tensors(named: Mapping[str, Any]) -> Arrays:
    """Tensors of any arrays, without a copy where torch can share their memory; tied arrays stay tied."""
    named = dict(named)  # values that a mapping makes anew each time would share an id by chance
    once = {id(v): _tensor(v) for v in named.values()}
    return {n: once[id(v)] for n, v in named.items()}


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    array = np.asarray(value)
    native = np.require(array, array.dtype.newbyteorder("="), "W")
    return torch.from_numpy(native.copy() if any(s < 0 for s in native.strides) else native)


def _cut(named: Arrays, buffers: Sequence[str] | None) -> tuple[Arrays, Arrays]:
    """(trainable parameters, buffers)."""
    if unknown := [n for n in buffers or () if n not in named]:
        raise ModelError(f"the model has no buffer {unknown[0]!r}; {near(unknown[0], named)}")

    def is_buffer(name: str, t: Tensor) -> bool:
        counts = not (t.is_floating_point() or t.is_complex())
        return counts or (name in buffers if buffers is not None else name.endswith(BUFFERS))

    kept = {n: t for n, t in named.items() if is_buffer(n, t)}
    trained = {n: t for n, t in named.items() if n not in kept}
    if not trained:
        raise ModelError("the model has no floating-point parameter that is not a buffer")
    return trained, kept


def _heard(recipe: Recipe, layout: Layout, w: Tensor, kept: Arrays, replies: Sequence[Reply]) -> Replies:
    """The replies stacked, one row a client; names and shapes are the model's."""
    ids = [r.client for r in replies]
    if twice := [i for i in ids if ids.count(i) > 1]:
        raise DataError(f"client {twice[0]} replied twice")
    if not replies:
        return Replies(torch.zeros(0, dtype=torch.long), w.new_zeros(0, len(w)))
    rows = [_one(r, layout, kept) for r in replies]
    delta = torch.stack([row for row, _ in rows]) - w
    buffers = {n: torch.stack([b[n] for _, b in rows]) for n in kept}
    stats = {"examples": torch.tensor([float(r.examples) for r in replies], dtype=torch.float64)}
    wanted = [
        (n, type(p).__name__) for p in recipe.parts().values() for n in p.needs - p.private - {"proxy", "features"}
    ]
    stats |= {n: _stat(n, replies, who, layout) for n, who in wanted}
    stats |= {"steps": _stat("steps", replies, "", layout)} if all("steps" in r.stats for r in replies) else {}
    uploads = {name: _uploads(part, layout, replies) for name, part in recipe.locals().items()}
    return Replies(torch.tensor(ids), delta, buffers, uploads, stats)


def _counted(replies: Replies, dropped: list[int]) -> tuple[Replies, list[int]]:
    """Leave out clients without examples too, unless nobody has any."""
    has = replies.stats["examples"] > 0
    if not bool(has.any()):
        return replies, dropped
    return replies.only(has), sorted([*dropped, *replies.ids[~has].tolist()])


def _one(reply: Reply, layout: Layout, kept: Arrays) -> tuple[Tensor, Arrays]:
    """A client's parameters [P] and buffers."""
    try:
        given = _tensors(reply.model)
        row = layout.flatten({n: t for n, t in given.items() if n not in kept})
    except ModelError as e:
        raise ModelError(f"client {reply.client}: {e}") from None
    for name, old in kept.items():
        if name not in given:
            raise ModelError(f"client {reply.client}: the buffer {name!r} is missing")
        if given[name].shape != old.shape:
            shapes = f"{tuple(given[name].shape)} where the model has {tuple(old.shape)}"
            raise ModelError(f"client {reply.client}: {name!r} has shape {shapes}")
    return row, {n: _in_type(given[n], old.dtype) for n, old in kept.items()}


def _in_type(sent: Tensor, dtype: torch.dtype) -> Tensor:
    """A buffer in the model's type; fractions of counters, and NaN, stay until all clients' are rounded together."""
    fraction = sent.is_floating_point() and not (dtype.is_floating_point or dtype.is_complex)
    return sent.double() if fraction else sent.to(dtype)


def _stat(name: str, replies: Sequence[Reply], who: str, layout: Layout) -> Tensor:
    """A measurement of every client, [K, ...]; "variance" stands for whichever variance is needed."""
    said = "variance" if name.endswith("_variance") and all("variance" in r.stats for r in replies) else name
    for r in replies:
        if said not in r.stats:
            raise NeedError(f"{who} needs {name!r} in the stats of every reply; client {r.client} has none")
    found = [_numbers(r.stats[said], layout) for r in replies]
    if name not in (*TABLES, *VECTORS):
        found = [v.reshape(()) if v.numel() == 1 else v for v in found]
    want = (layout.size,) if name in VECTORS else found[0].shape if name in TABLES else ()
    for r, v in zip(replies, found, strict=True):
        if v.shape != want:
            raise ModelError(f"client {r.client}: {name!r} has shape {tuple(v.shape)}, where {tuple(want)} is needed")
    return torch.stack(found)


def _numbers(value: Any, layout: Layout) -> Tensor:
    """A measurement in float64; one by parameter name becomes a vector."""
    if isinstance(value, Mapping):
        return replace(layout, dtype=torch.float64).flatten(_tensors(value))
    given = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value, np.float64))
    return given.double()


def _uploads(part: Local, layout: Layout, replies: Sequence[Reply]) -> Arrays:
    """What every client uploaded, [K, ...] by name."""
    names = [n for n in replies[0].uploads if all(n in r.uploads for r in replies)]
    return {n: _upload(part, n, layout, replies) for n in names}


def _upload(part: Local, name: str, layout: Layout, replies: Sequence[Reply]) -> Tensor:
    """One upload of every client, [K, ...]; one by parameter name becomes a vector, and these have the model's type."""
    rows = list[Tensor]()
    for r in replies:
        value = r.uploads[name]
        where, vector = f"client {r.client}: {type(part).__name__}'s upload {name!r}", name in part.vectors
        try:
            row = layout.flatten(_tensors(value)) if isinstance(value, Mapping) else torch.as_tensor(value)
        except ModelError as e:
            raise ModelError(f"{where}: {e}") from None
        want = (layout.size,) if vector else tuple((rows or [row])[0].shape)
        if tuple(row.shape) != want:
            raise ModelError(f"{where} has shape {tuple(row.shape)}, where {want} is needed")
        if row.is_complex():
            raise ModelError(f"{where} is complex, where real numbers are needed")
        rows.append(row.to(layout.device, layout.dtype) if vector else row)
    return torch.stack(rows)


def _like(value: Tensor, given: Any) -> Any:
    """The value as the kind of array, and in the type, that was given."""
    if isinstance(given, Tensor):
        return value.to(given.device, given.dtype).clone()
    return value.cpu().numpy().astype(np.asarray(given).dtype, copy=True)
