"""One federation over the cores or GPUs of a Ray cluster, of this machine or of many.

Every worker holds the federation and runs one of the other engines on the few clients that it is given. Examples are
sent to every machine once, the global model once a round. What comes back is each client's update, or of many clients
and where the recipe allows it, one mean of a chunk's. What clients remember stays with the first process and travels
with them: a worker that is lost takes nothing along, and its chunk is computed again.

The chunks depend on the cohort and on nothing else, so that the result does not depend on how many workers there are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pickle import PicklingError
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedstrata import memory
from fedstrata.core import Cohort, State
from fedstrata.descent import Federation, Steps
from fedstrata.errors import SettingError, in_short
from fedstrata.evaluate import EXAMPLES_AT_ONCE, IMAGES_AT_ONCE, Sets, score
from fedstrata.layout import Arrays
from fedstrata.merge import merged
from fedstrata.precision import Precision, multiplying
from fedstrata.runtimes.apart import Apart
from fedstrata.runtimes.cluster import Cluster
from fedstrata.runtimes.collect import collect
from fedstrata.runtimes.crew import packed, unpacked
from fedstrata.runtimes.faulty import Faulty
from fedstrata.runtimes.stacked import Stacked, clients_at_once
from fedstrata.runtimes.vault import Vault
from fedstrata.runtimes.visit import Runtime, joined, nobody, part_of
from fedstrata.server import Replies, Server

CHUNKS, MOST, FEWEST_STACKED = 16, 16, 8
"""Chunks of a large cohort, at least; clients of a chunk, at most, and at least where they are stacked."""

SMALL = 8 << 20
"""Bytes of a cohort's updates up to which each comes back by itself: that takes some milliseconds, and is recorded."""

LIGHT = 1e9
"""Parameters x examples below which they are scored here, in less time than sending takes; images are always sent."""

WHOLE = 1 << 30
"""Clients that a worker stacks at a time: all that it is given."""


@dataclass(frozen=True)
class Kit:
    """What every worker has before it, but for the examples."""

    fed: Federation  # with none of its examples
    places: dict[str, tuple[int, int]]  # which of the arrays are x and y of the clients, and of each set
    fresh: State
    stacked: bool
    steps: Callable[[Federation], Steps]
    precision: Precision


class Ray:
    """Trains, measures and scores a few clients or examples at a time, in the workers of a cluster."""

    def __init__(
        self,
        fed: Federation,
        vault: Vault,
        sets: Sets,
        cluster: Cluster,
        stacked: bool,
        chunk: int | None,
        steps: Callable[[Federation], Steps],
        precision: Precision = "float32",
    ):
        self.fed, self.vault, self.sets, self.cluster, self.stacked = fed, vault, sets, cluster, stacked
        self.chunk, self.fits = chunk, clients_at_once(fed) if stacked else MOST
        self.remembers = bool(tree_leaves(vault.fresh))
        pairs = {"clients": (fed.clients.x, fed.clients.y)} | dict(sets)
        arrays = {id(v): v for pair in pairs.values() for v in pair}  # the clients' are often a set as well
        index = {key: i for i, key in enumerate(arrays)}
        places = {name: (index[id(x)], index[id(y)]) for name, (x, y) in pairs.items()}
        none = replace(fed.clients, x=fed.clients.x[:0], y=fed.clients.y[:0])
        lean = replace(fed, task=replace(fed.task), clients=none)
        try:
            kit = cluster.put(Kit(lean, places, vault.fresh, stacked, steps, precision))
        except (TypeError, AttributeError, PicklingError) as e:
            cluster.close()
            what = f"the model, the loss or a part cannot be sent to other processes ({in_short(e)})"
            raise SettingError(f"{what}; give one that can, or engine = 'pool', where nothing is sent") from e
        cluster.equip(Site, kit, cluster.put(packed(list(arrays.values()), copy=False)))

    def survey(self, server: Server, names: frozenset[str], ids: Sequence[int]) -> Arrays:
        parts = _parts(len(ids), self.clients_in_a_chunk(len(ids)))

        def job(j: int) -> Any:
            some = ids[parts[j]]
            return "survey", names, some, self.vault.some(some, "buffers") if self.fed.buffers == "local" else {}

        at = self._at(server.model, server.buffers, server.number)
        found = dict(self.cluster.each(job, range(len(parts)), at))
        return {n: torch.cat([found[j][n] for j in range(len(parts))]).to(server.model.device) for n in names}

    def train(self, server: Server, cohort: Cohort, brief: State, probes: frozenset[str]) -> Replies:
        step = self.clients_in_a_chunk(len(cohort))
        merging = self.merges(len(cohort), step)
        parts = _parts(len(cohort), step)
        work = [float(cohort.stats["examples"][p].sum()) for p in parts]

        def job(j: int) -> Any:
            some, told = part_of(cohort, brief, parts[j])
            ids = some.ids.tolist()
            memories = self.vault.some(ids) if self.remembers else {}
            about = some.population, some.mean_examples
            return "train", ids, some.stats, tree_map(_once, told), memories, about, probes, merging

        found: dict[int, Replies] = {}
        at = self._at(server.model, server.buffers, server.number)
        large_first = sorted(range(len(parts)), key=lambda j: -work[j])
        for j, (fields, memories, bad) in self.cluster.each(job, large_first, at):
            self.vault.keep(memories)
            there = tree_map(lambda v: v.to(server.model.device), fields)
            found[j] = Replies(*there, left_out=tuple(bad))
        left_out = tuple(i for j in range(len(parts)) for i in found[j].left_out)
        heard = [found[j] for j in range(len(parts)) if len(found[j].ids)]
        return replace(joined(heard) if heard else nobody(server, cohort), left_out=left_out)

    def score(self, model: Tensor, buffers: Arrays, name: str) -> Arrays:
        n, images = len(self.sets[name][0]), self.fed.task.channels_last
        size = 4 * IMAGES_AT_ONCE if images else EXAMPLES_AT_ONCE
        if n <= size or (not images and n * len(model) < LIGHT):
            return score(self.fed.task, model, buffers, *self.sets[name])
        parts = _parts(n, size * ceil(n / size / CHUNKS))  # in the batches of one machine
        at = self._at(model, buffers)
        found = dict(self.cluster.each(lambda j: ("score", name, parts[j]), range(len(parts)), at))
        return {m: torch.cat([found[j][m] for j in range(len(parts))]).to(model.device) for m in found[0]}

    def close(self) -> None:
        self.cluster.close()

    def clients_in_a_chunk(self, count: int) -> int:
        """How many of so many clients a worker is given at a time; the chunks are of about equal size."""
        if self.chunk is not None:
            return self.chunk
        fewest = FEWEST_STACKED if self.stacked else 1
        most = max(1, min(MOST, self.fits, max(fewest, count // CHUNKS)))
        return ceil(count / ceil(count / most)) if count else 1

    def merges(self, count: int, step: int) -> bool:
        """Whether the replies of a chunk come back as one."""
        layout = self.fed.task.layout
        return not self.fed.recipe.single and step > 1 and count * layout.size * layout.dtype.itemsize > SMALL

    def _at(self, model: Tensor, buffers: Arrays, number: int = 0) -> Any:
        """The global model where all workers find it."""
        return self.cluster.put(packed((model, buffers, number), copy=False))


class Site:
    """In a worker: an engine of one machine, and what it takes to give it a few clients at a time."""

    def __init__(self, kit: Kit, examples: Any):
        torch.set_num_threads(1)
        memory.keep()
        device = kit.fed.task.layout.device
        arrays = [v.to(device) for v in unpacked(examples, copy=False)]
        pairs = {name: (arrays[i], arrays[j]) for name, (i, j) in kit.places.items()}
        x, y = pairs.pop("clients")
        self.fed = replace(kit.fed, clients=replace(kit.fed.clients, x=x, y=y))
        self.sets, self.vault = pairs, Vault(kit.fresh)
        self.precision: Precision = kit.precision
        self.remembers = bool(tree_leaves(kit.fresh))
        given = self.fed, self.vault, self.sets
        engine: Runtime = Stacked(*given, WHOLE, kit.steps(self.fed)) if kit.stacked else Apart(*given)
        self.engine = Faulty(engine, self.fed.fates) if self.fed.fates is not None else engine

    def __call__(self, common: Any, job: Any) -> Any:
        kind, *what = job
        to = partial(tree_map, lambda v: v.to(self.fed.task.layout.device) if isinstance(v, Tensor) else v)
        model, buffers, number = to(common)
        does = {"train": self._train, "survey": self._survey, "score": self._score}
        with multiplying(self.precision):
            return does[kind](Server(self.fed.task.layout, model, buffers, {}, {}, number), *to(what))

    def _train(
        self,
        server: Server,
        ids: list[int],
        stats: Arrays,
        brief: State,
        memories: dict[int, State],
        about: tuple[int, float],
        probes: frozenset[str],
        merging: bool,
    ) -> Any:
        """(the fields of the replies, what those who trained remember now, whose replies were left out)."""
        who = torch.tensor(ids, device=server.model.device)
        cohort = Cohort(server.layout, who, stats, server.model, about[0], server.number, about[1])
        told = tree_map(lambda v: v.expand(len(ids), *v.shape[1:]), brief)
        self.vault.memories = dict(memories)
        bad: list[int] = []
        if merging:
            replies, bad = collect(self.fed, self.engine, server, cohort, told, probes, "drop")
            replies = merged(self.fed.recipe, server, cohort, replies) if len(replies.ids) else replies
        else:
            replies = self.engine.train(server, cohort, told, probes)
        changed = {i: m for i, m in self.vault.memories.items() if self.remembers and m is not memories.get(i)}
        return (replies.ids, replies.delta, replies.buffers, replies.uploads, replies.stats), changed, bad

    def _survey(self, server: Server, names: frozenset[str], ids: list[int], memories: dict[int, State]) -> Arrays:
        self.vault.memories = dict(memories)
        return self.engine.survey(server, names, ids)

    def _score(self, server: Server, name: str, part: slice) -> Arrays:
        x, y = self.sets[name]
        return score(self.fed.task, server.model, server.buffers, x[part], y[part])


def _parts(count: int, step: int) -> list[slice]:
    return [slice(i, i + step) for i in range(0, count, step)]


def _once(v: Tensor) -> Tensor:
    """What is the same for all clients, once."""
    return v[:1] if len(v) > 1 and v.stride(0) == 0 else v
