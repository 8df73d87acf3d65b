"""What every runtime of one machine does with a few clients: hand out memories, train, keep the memories."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol

import torch
from torch.utils._pytree import tree_map

from fedstrata.core import Cohort, State
from fedstrata.layout import Arrays
from fedstrata.runtimes.vault import Vault
from fedstrata.server import Replies, Server
from fedstrata.train import Errand, Federation, Watch, train


class Runtime(Protocol):
    """Who calls the clients."""

    def survey(self, server: Server, names: frozenset[str], ids: Sequence[int]) -> Arrays:
        """What these clients measure at the global model, [K] each."""
        ...

    def train(self, server: Server, cohort: Cohort, brief: State, probes: frozenset[str]) -> Replies:
        """Send the cohort through a round."""
        ...


def errand_for(fed: Federation, vault: Vault, server: Server, ids: Sequence[int], probes: frozenset[str]) -> Errand:
    """What these clients need to measure themselves: the model, and their own buffers where they keep them."""
    if fed.buffers == "local":
        buffers = vault.take(ids, server.model.device, "buffers")["buffers"]
    else:
        buffers = {n: b.expand(len(ids), *b.shape) for n, b in server.buffers.items()}
    return Errand(ids, server.number, server.model, buffers, {}, {}, {}, probes)


def visit(
    fed: Federation,
    vault: Vault,
    server: Server,
    cohort: Cohort,
    brief: State,
    probes: frozenset[str],
    part: slice,
    watch: Watch = nullcontext,
) -> Replies:
    """Train the clients of a part of the cohort. Who returned something that is not finite keeps its old memory."""
    ids = cohort.ids[part].tolist()
    brief, stats = tree_map(lambda v: v[part], (brief, cohort.stats))
    memory = vault.take(ids, server.model.device)
    errand = replace(errand_for(fed, vault, server, ids, probes), brief=brief, memory=memory, stats=stats)
    back = train(fed, errand, watch)
    replies = Replies(cohort.ids[part], back.delta, back.buffers, back.uploads, back.stats)
    if back.memory:
        vault.put(ids, back.memory, replies.usable())
    return replies


def joined(parts: Sequence[Replies]) -> Replies:
    """The replies of several parts of a cohort as one."""
    if len(parts) == 1:
        return parts[0]
    fields = [(p.ids, p.delta, p.buffers, p.uploads, p.stats) for p in parts]
    return Replies(*tree_map(lambda *vs: torch.cat(vs), *fields))
