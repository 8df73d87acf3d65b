"""What every runtime of one machine does with a few clients: hand out memories, train, keep the memories."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedstrata.core import Cohort, State
from fedstrata.descent import Errand, Federation, Steps, take_steps
from fedstrata.evaluate import Sets, score
from fedstrata.layout import Arrays
from fedstrata.runtimes.vault import Vault
from fedstrata.server import Replies, Server
from fedstrata.train import Watch, train


class Runtime(Protocol):
    """Who calls the clients."""

    @property
    def sets(self) -> Sets:
        """What it scores models on."""
        ...

    def survey(self, server: Server, names: frozenset[str], ids: Sequence[int]) -> Arrays:
        """What these clients measure at the global model, [K] each."""
        ...

    def train(self, server: Server, cohort: Cohort, brief: State, probes: frozenset[str]) -> Replies:
        """Send the cohort through a round; what comes back is good until the next one."""
        ...

    def score(self, model: Tensor, buffers: Arrays, name: str) -> Arrays:
        """The loss and every metric of each example of a set, [n] each."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


@dataclass(frozen=True)
class InProcess:
    """What runtimes without processes of their own share."""

    fed: Federation
    vault: Vault
    sets: Sets

    def score(self, model: Tensor, buffers: Arrays, name: str) -> Arrays:
        return score(self.fed.task, model, buffers, *self.sets[name])

    def close(self) -> None:
        return


def errand_for(fed: Federation, vault: Vault, server: Server, ids: Sequence[int], probes: frozenset[str]) -> Errand:
    """What these clients need to measure themselves: the model, and their own buffers where they keep them."""
    if fed.buffers == "local":
        buffers = vault.take(ids, server.model.device, "buffers")["buffers"]
    else:
        buffers = {n: b.expand(len(ids), *b.shape) for n, b in server.buffers.items()}
    return Errand(ids, server.number, server.model, buffers, {}, {}, {}, probes)


def errand_of(
    fed: Federation, vault: Vault, server: Server, cohort: Cohort, brief: State, probes: frozenset[str], part: slice
) -> Errand:
    """What the clients of a part of the cohort need to train."""
    ids = cohort.ids[part].tolist()
    brief, stats = tree_map(lambda v: v[part], (brief, cohort.stats))
    memory = vault.take(ids, server.model.device)
    return replace(errand_for(fed, vault, server, ids, probes), brief=brief, memory=memory, stats=stats)


def visit(
    fed: Federation,
    vault: Vault,
    server: Server,
    cohort: Cohort,
    brief: State,
    probes: frozenset[str],
    part: slice,
    watch: Watch = nullcontext,
    steps: Steps = take_steps,
) -> Replies:
    """Train the clients of a part of the cohort. Who returned something that is not finite keeps its old memory."""
    errand = errand_of(fed, vault, server, cohort, brief, probes, part)
    back = train(fed, errand, watch, steps)
    replies = Replies(cohort.ids[part], back.delta, back.buffers, back.uploads, back.stats)
    if back.memory:
        vault.put(errand.ids, back.memory, replies.usable(server.buffers))
    return replies


def joined(parts: Sequence[Replies]) -> Replies:
    """The replies of several parts of a cohort as one."""
    if len(parts) == 1:
        return parts[0]
    fields = [(p.ids, p.delta, p.buffers, p.uploads, p.stats) for p in parts]
    return Replies(*tree_map(lambda *vs: torch.cat(vs), *fields))


def part_of(cohort: Cohort, brief: State, part: slice | Tensor) -> tuple[Cohort, State]:
    """Some clients of the cohort and their briefs; a mask, [K], or a slice says which."""
    ids, stats, told = tree_map(lambda v: v[part], (cohort.ids, cohort.stats, brief))
    return replace(cohort, ids=ids, stats=stats), told


def nobody(server: Server, cohort: Cohort) -> Replies:
    """What comes back where nobody replied."""
    return Replies(cohort.ids[:0], server.model.new_zeros(0, server.layout.size))
