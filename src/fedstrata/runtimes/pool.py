"""Clients one by one in worker processes, one thread each: what suits convolutions on a CPU.

Data, model and recipe are inherited, never copied. The global model is broadcast through shared memory once a round,
and every worker writes its clients' updates into one shared [K, P] matrix. Each client is computed by itself on one
thread, so that the result does not depend on how many workers there are.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedstrata.core import Cohort, State
from fedstrata.descent import Errand, Federation
from fedstrata.evaluate import Sets, score
from fedstrata.layout import Arrays
from fedstrata.runtimes.apart import naming
from fedstrata.runtimes.crew import Crew, shared
from fedstrata.runtimes.vault import Vault
from fedstrata.runtimes.visit import errand_for, errand_of
from fedstrata.server import Replies, Server
from fedstrata.train import survey, train

SCORED_AT_ONCE = 512
"""Examples that a worker scores in one job."""


class Pool:
    """Trains, measures and scores in `workers` processes."""

    def __init__(self, fed: Federation, vault: Vault, sets: Sets, workers: int):
        self.fed, self.vault, self.sets, self.workers = fed, vault, sets, workers
        self.crew: Crew | None = None
        self.model = shared([fed.task.layout.size], fed.task.layout.dtype)
        self.buffers: Arrays = {}
        self.delta = self.model.new_zeros(0, len(self.model))

    def survey(self, server: Server, names: frozenset[str], ids: Sequence[int]) -> Arrays:
        crew = self._ready(server.model, server.buffers)
        jobs = (("survey", self._lean(errand_for(self.fed, self.vault, server, [i], names))) for i in ids)
        answers = self._done(crew, jobs)
        return {n: torch.cat([a[n] for a in answers]) for n in names}

    def train(self, server: Server, cohort: Cohort, brief: State, probes: frozenset[str]) -> Replies:
        self._let_go(server.state)
        crew = self._ready(server.model, server.buffers, len(cohort))
        large_first = torch.argsort(cohort.stats["examples"], descending=True, stable=True).tolist()

        def job(j: int) -> Any:
            part = slice(j, j + 1)
            return "train", self._lean(errand_of(self.fed, self.vault, server, cohort, brief, probes, part)), j

        back = dict(zip(large_first, self._done(crew, map(job, large_first)), strict=True))
        parts = [back[j] for j in range(len(cohort))]
        buffers, uploads, stats = tree_map(lambda *vs: torch.cat(vs), *[p[:3] for p in parts])
        replies = Replies(cohort.ids, self.delta[: len(cohort)], buffers, uploads, stats)
        if any(p[3] for p in parts):
            for i, part, usable in zip(cohort.ids.tolist(), parts, replies.usable(server.buffers), strict=True):
                self.vault.put([i], part[3], usable[None])
        return replies

    def score(self, model: Tensor, buffers: Arrays, name: str) -> Arrays:
        crew = self._ready(model, buffers)
        n = len(self.sets[name][0])
        pieces = [("score", name, a, min(a + SCORED_AT_ONCE, n)) for a in range(0, n, SCORED_AT_ONCE)]
        return tree_map(lambda *vs: torch.cat(vs), *self._done(crew, pieces))

    def close(self) -> None:
        if self.crew is not None:
            self.crew.dismiss()
            self.crew = None

    def _ready(self, model: Tensor, buffers: Arrays, rows: int = 0) -> Crew:
        """The workers, with the model and its buffers before them, and room for so many updates."""
        if rows > len(self.delta):
            self.close()
            self.delta = shared([2 * rows, len(model)], model.dtype)  # what is not touched takes no memory
        if self.crew is None:
            self.buffers = {n: shared(b.shape, b.dtype) for n, b in buffers.items()}
            self.crew = Crew(self._work, self.workers)
        self.model.copy_(model)
        for n, b in buffers.items():
            self.buffers[n].copy_(b)
        return self.crew

    def _let_go(self, state: State) -> None:
        """Leave the last round's updates to a part that kept some of them as they are."""
        mine = self.delta.untyped_storage().data_ptr()
        if len(self.delta) and any(v.untyped_storage().data_ptr() == mine for v in tree_leaves(state)):
            self.close()
            self.delta = self.delta.new_zeros(0, len(self.model))

    def _done(self, crew: Crew, jobs: Iterable[Any]) -> list[Any]:
        """The results in the order of the jobs."""
        try:
            results = dict(crew.each(jobs))
        except BaseException:
            self.close()  # some are still at work, and their answers would be taken for others
            raise
        return [results[i] for i in range(len(results))]

    def _lean(self, errand: Errand) -> Any:
        """An errand without what every worker has before it."""
        own = errand.buffers if self.fed.buffers == "local" else None
        return errand.ids, errand.number, own, errand.brief, errand.memory, errand.stats, errand.probes

    def _whole(self, ids: Any, number: int, own: Arrays | None, *rest: Any) -> Errand:
        buffers = {n: b[None] for n, b in self.buffers.items()} if own is None else own
        return Errand(ids, number, self.model, buffers, *rest)

    def _work(self, job: Any) -> Any:
        """In a worker: one client's training or measurements, or the scores of some examples."""
        kind, *what = job
        if kind == "score":
            name, a, b = what
            x, y = self.sets[name]
            return score(self.fed.task, self.model, self.buffers, x[a:b], y[a:b])
        errand = self._whole(*what[0])
        watch = naming(errand.number, errand.ids[0])
        if kind == "survey":
            with watch("measuring"):
                return survey(self.fed, errand)
        back = train(self.fed, errand, watch)
        self.delta[what[1]].copy_(back.delta[0])
        return back.buffers, back.uploads, back.stats, back.memory
