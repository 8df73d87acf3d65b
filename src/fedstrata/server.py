"""The server's half of a round, whoever carries the messages: open it, screen the replies, close it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedstrata.buffers import BufferPolicy, Buffers, excused
from fedstrata.core import Cohort, Proxy, Recipe, Round, State
from fedstrata.errors import DataError, NotFiniteError
from fedstrata.layout import Arrays, Layout
from fedstrata.optim import Training
from fedstrata.tables import finite, finite_rows
from fedstrata.threads import quiet
from fedstrata.updates import Updates

OnNonFinite = Literal["drop", "raise"]

Ask = Callable[[frozenset[str], Sequence[int]], Arrays]
"""(names of probes, client ids) -> what these clients measure at the global model, [K, ...] each."""


@dataclass(frozen=True)
class Server:
    """All that the server remembers between rounds."""

    layout: Layout
    model: Tensor  # [P]
    buffers: Arrays
    state: State
    stats: Arrays  # [N, ...] what it last heard of every client
    number: int = 0  # of the round to come

    @property
    def population(self) -> int:
        """N, all clients."""
        return len(self.stats["examples"])


@dataclass(frozen=True)
class Replies:
    """What the cohort sent back, one row a client, in the order of their ids."""

    ids: Tensor  # [K]
    delta: Tensor  # [K, P]
    buffers: Arrays = field(default_factory=dict)
    uploads: State = field(default_factory=dict)
    stats: Arrays = field(default_factory=dict)  # what they measured
    seen: Updates | None = None  # what was worked out of the updates already
    left_out: tuple[int, ...] = ()  # who sent NaN or infinity, where that was seen on the way

    def usable(self, own: Arrays | None = None) -> Tensor:
        """Which clients sent only finite numbers, [K]; where the server's `own` buffers are not, theirs need not be."""
        good = self._finite()
        if own is None or bool(good.all()):
            return good
        return replace(self, buffers=excused(self.buffers, own))._finite()

    def _finite(self) -> Tensor:
        others = [*self.buffers.values(), *self.stats.values(), *(v for u in self.uploads.values() for v in u.values())]
        others = [v for v in others if v.is_floating_point()]
        if self.seen is None:
            return finite_rows([self.delta, *others])
        return self.seen.finite() & finite_rows(others) if others else self.seen.finite()

    def only(self, keep: Tensor) -> "Replies":
        """The replies of some of the clients."""
        if bool(keep.all()):
            return self
        parts = self.ids, self.delta, self.buffers, self.uploads, self.stats
        return Replies(*tree_map(lambda v: v[keep], parts), left_out=self.left_out)


def has_data(stats: Arrays) -> Tensor:
    """The ids of the clients that have examples, in rising order."""
    return (stats["examples"] > 0).nonzero().flatten().cpu()


def open_round(
    recipe: Recipe,
    server: Server,
    rng: np.random.Generator,
    ask: Ask,
    present: Tensor | None = None,
    spare: float = 0.0,
) -> tuple[Server, Cohort, State]:
    """Choose the cohort and write its briefs. Clients without data are never chosen.

    Where `present`, [N], says so, only those are chosen that are there; `spare` is the share of clients that are asked
    beyond those whom the selection wants.
    """
    pool = has_data(server.stats)
    pool = pool if present is None else pool[present[pool]]
    heard = server.stats | _asked(server, recipe.select.asks, pool, ask)
    chosen, state = recipe.pick(server.state, _at(heard, pool), rng, server.number)
    chosen = _with_more(chosen, len(pool), spare, rng) if spare else chosen
    ids = pool[chosen].sort().values
    heard = heard | _asked(server, recipe.briefing - recipe.select.asks, ids, ask)
    server = replace(server, state=state)
    mean = float(server.stats["examples"].mean()) if len(pool) else 1.0
    cohort = Cohort(server.layout, ids, _at(heard, ids), server.model, server.population, server.number, mean)
    cohort = replace(cohort, ids=ids.to(server.model.device))
    return server, cohort, recipe.brief(server.state, cohort)


def screen(
    replies: Replies,
    number: int,
    on_nonfinite: OnNonFinite,
    recipe: Recipe | None = None,
    cohort: Cohort | None = None,
    own: Arrays | None = None,
) -> tuple[Replies, list[int]]:
    """Leave out the clients that sent NaN or infinity: (the usable replies, the ids of the others).

    Given the recipe and the cohort, whatever the recipe asks of the updates is worked out in the same pass. `own` has
    the server's buffers: where these are not finite, clients' need not be.
    """
    if recipe is not None and cohort is not None and len(replies.ids):
        replies = replace(replies, seen=recipe.updates(answered(cohort, replies), replies.delta))
    with quiet(replies.seen is not None and replies.seen.fused):
        good = replies.usable(own)
    sent = zip(replies.ids.tolist(), good.tolist(), strict=True)
    bad = sorted([*replies.left_out, *(i for i, fine in sent if not fine)])
    if bad and on_nonfinite == "raise":
        raise NotFiniteError(f"round {number}: {clients_in_words(bad)} returned values that are NaN or infinite")
    return replies.only(good), bad


def close_round(
    recipe: Recipe,
    server: Server,
    cohort: Cohort,
    replies: Replies,
    proxy: Proxy | None = None,
    buffers: BufferPolicy = "average",
    training: Training | None = None,
    lr: float | None = None,
    seed: int = 0,
) -> tuple[Server, Arrays]:
    """The next server and the round's notes, from those who replied. Nobody replied: nothing changes."""
    if len(replies.ids) == 0:
        return replace(server, number=server.number + 1), {}
    cohort = answered(cohort, replies)
    if not float(cohort.stats["examples"].sum()) > 0:
        raise DataError(
            f"round {cohort.number}: none of {clients_in_words(replies.ids.tolist())} has an example to weigh it by"
        )
    sent = Buffers(server.buffers, replies.buffers if buffers == "average" else {})
    seen = replies.seen or recipe.updates(cohort, replies.delta)
    round = Round(cohort, replies.delta, proxy=proxy, training=training, lr=lr, buffers=sent, seed=seed, seen=seen)
    single = "clients" not in replies.stats
    with quiet(seen.fused and proxy is None):  # the passes over [K, P] share out their work by themselves
        if single:
            round.note(drift=seen.norm("layer"))  # [K, L]
        model, after, state = recipe.aggregate(server.state, round, replies.uploads)
        sound = seen.sound(model)
    if wrong := [*([] if sound else ["a model"]), *_spoiled(recipe, server.state, state)]:
        raise NotFiniteError(
            f"round {cohort.number}: the server's step gave {wrong[0]} with NaN or infinite values, though every "
            "client's reply was finite; lower the learning rate or the strength of the correction"
        )
    after = after if buffers == "average" else server.buffers
    told = {n: v for n, v in replies.stats.items() if v.dim() == 1 and single}
    heard = server.stats | {n: _heard(server, n, v, replies.ids) for n, v in told.items()}
    return replace(server, model=model, buffers=after, state=state, stats=heard, number=server.number + 1), round.notes


def answered(cohort: Cohort, replies: Replies) -> Cohort:
    """Those of the cohort who replied, with what they measured; of merged replies, only what these say themselves."""
    if "clients" in replies.stats:
        return replace(cohort, ids=replies.ids, stats=replies.stats)
    if torch.equal(replies.ids, cohort.ids):  # nothing to pick
        return replace(cohort, stats=cohort.stats | replies.stats)
    there = torch.searchsorted(cohort.ids, replies.ids)
    return replace(cohort, ids=replies.ids, stats=_at(cohort.stats, there) | replies.stats)


def clients_in_words(ids: Sequence[int]) -> str:
    """These clients in words."""
    return f"client {ids[0]}" if len(ids) == 1 else f"clients {', '.join(map(str, ids))}"


def _spoiled(recipe: Recipe, before: State, after: State) -> list[str]:
    """What of the parts' states is no longer finite, in words; what never was, such as a table with gaps, may be so."""
    kinds = {name: type(part).__name__ for name, part in recipe.parts().items()}
    pairs = ((name, key, v, before[name].get(key, v)) for name in kinds for key, v in after[name].items())
    return [
        f"{kinds[name]} a state {key!r}" for name, key, v, old in pairs if not (v is old or finite(v)) and finite(old)
    ]


def _with_more(chosen: Tensor, count: int, spare: float, rng: np.random.Generator) -> Tensor:
    """These positions and, at random, this share more of the others."""
    others = np.setdiff1d(np.arange(count), chosen.numpy())
    return torch.cat([chosen, torch.from_numpy(rng.permutation(others)[: ceil(spare * len(chosen))])])


def _asked(server: Server, names: frozenset[str], ids: Tensor, ask: Ask) -> Arrays:
    """These clients' answers in tables of all clients, [N, ...]; NaN for the others."""
    if not names or not len(ids):
        return {}
    answers = ask(names, ids.tolist())
    return {n: _table(server, v).index_copy(0, ids.to(v.device), v) for n, v in answers.items()}


def _heard(server: Server, name: str, values: Tensor, ids: Tensor) -> Tensor:
    """The table of a measurement, [N, ...], with these clients' new values; NaN for those never asked."""
    old = server.stats.get(name)
    return (_table(server, values) if old is None else old).index_copy(0, ids, values)


def _table(server: Server, values: Tensor) -> Tensor:
    """An empty table for values like these, [N, ...]."""
    return values.new_full((server.population, *values.shape[1:]), torch.nan)


def _at(stats: Arrays, ids: Tensor) -> Arrays:
    return {n: v[ids.to(v.device)] for n, v in stats.items()}
