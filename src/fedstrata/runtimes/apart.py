"""Clients one by one, each by itself: slower, but an error names the stage, the round and the client."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fedstrata.core import Cohort, State
from fedstrata.errors import ClientError
from fedstrata.hooks import told
from fedstrata.layout import Arrays
from fedstrata.runtimes.visit import InProcess, errand_for, joined, visit
from fedstrata.server import Replies, Server
from fedstrata.train import Watch, survey


@dataclass(frozen=True)
class Apart(InProcess):
    """Trains the cohort one client after another, each with all threads."""

    def survey(self, server: Server, names: frozenset[str], ids: Sequence[int]) -> Arrays:
        answers = []
        for i in ids:
            with naming(server.number, i)("measuring"):
                answers.append(survey(self.fed, errand_for(self.fed, self.vault, server, [i], names)))
        return {n: torch.cat([a[n] for a in answers]) for n in names}

    def train(self, server: Server, cohort: Cohort, brief: State, probes: frozenset[str]) -> Replies:
        def alone(j: int, client: int) -> Replies:
            watch = naming(server.number, client)
            return visit(self.fed, self.vault, server, cohort, brief, probes, slice(j, j + 1), watch)

        return joined([alone(j, client) for j, client in enumerate(cohort.ids.tolist())])


def naming(number: int, client: int) -> Watch:
    """Stages whose errors say the round and the client."""

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        try:
            yield
        except Exception as e:
            raise ClientError(f"round {number}, client {client}, {name}: {told(e)}") from e

    return stage
