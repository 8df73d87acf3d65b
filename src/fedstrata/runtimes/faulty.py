"""Clients that do not answer, or too late, whoever calls them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstrata.core import Cohort, State
from fedstrata.evaluate import Sets
from fedstrata.faults import Fates
from fedstrata.layout import Arrays
from fedstrata.runtimes.visit import Runtime, nobody, part_of
from fedstrata.server import Replies, Server


@dataclass(frozen=True)
class Faulty:
    """Another runtime from whose cohorts some drop out, and whose late replies are left out.

    Who drops out remembers nothing of the round; who is late has trained, and remembers it. Measurements that the
    server asks for apart from training are always answered.
    """

    runtime: Runtime
    fates: Fates

    @property
    def sets(self) -> Sets:
        return self.runtime.sets

    def survey(self, server: Server, names: frozenset[str], ids: Sequence[int]) -> Arrays:
        return self.runtime.survey(server, names, ids)

    def train(self, server: Server, cohort: Cohort, brief: State, probes: frozenset[str]) -> Replies:
        here = ~self._struck("dropout", cohort.number, cohort.ids)
        if not bool(here.any()):
            return nobody(server, cohort)
        cohort, brief = part_of(cohort, brief, here)
        replies = self.runtime.train(server, cohort, brief, probes)
        return replies.only(~self._struck("late", cohort.number, replies.ids))

    def score(self, model: Tensor, buffers: Arrays, name: str) -> Arrays:
        return self.runtime.score(model, buffers, name)

    def close(self) -> None:
        self.runtime.close()

    def _struck(self, fault: str, number: int, ids: Tensor) -> Tensor:
        return torch.from_numpy(self.fates.struck(fault, number, ids.tolist())).to(ids.device)
