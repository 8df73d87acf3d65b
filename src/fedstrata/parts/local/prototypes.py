"""FedProc: pull every client's features towards the federation's mean feature of their class."""

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch.nn.functional import normalize

from fedstrata.core import Local
from fedstrata.errors import check


@final
@dataclass(frozen=True)
class Prototypes(Local):
    """FedProc (Mu et al. 2023): a client minimises a CE + (1 - a) l_pc, a = min(1, t / rounds); in round 0, CE.

    l_pc = -log softmax_j(s(z, c_j))[y],   s the cosine, c_j the global prototype of class j

    c_j is the mean over all examples of class j of the features scaled to length 1, by the models that the clients
    trained: pooled by counts, as the authors' code does; by="clients" takes the mean of the clients' means, as the
    paper says. A class that nobody has keeps its prototype, zero at first.
    """

    rounds: int = 100
    by: Literal["examples", "clients"] = "examples"

    def validate(self):
        check(self.rounds >= 1, f"Prototypes.rounds must be at least 1; got {self.rounds}")

    @property
    def needs(self):
        return frozenset({"features", "labels", "class_features"})

    @property
    def private(self):
        return frozenset({"labels"})

    @property
    def additive(self):
        return self.by == "examples"

    def brief(self, state, cohort):
        number = torch.full_like(cohort.ids, cohort.number, dtype=torch.float64)
        return {n: v.expand(len(cohort), *v.shape) for n, v in state.items()} | {"round": number}

    def penalty(self, w, turn, batch):
        if "prototypes" not in turn.brief:
            return 0.0
        assert batch.features is not None  # checked before anything ran
        assert batch.loss is not None
        z, c = batch.features.flatten(1), turn.brief["prototypes"].to(w.dtype)
        cos = normalize(z, dim=-1) @ normalize(c, dim=-1).T  # [B, C]
        contrast = -torch.log_softmax(cos, -1).gather(1, batch.y[:, None])[:, 0]
        a = (turn.brief["round"] / self.rounds).clamp(max=1).to(w.dtype)
        return (1 - a) * (batch.mean(contrast) - batch.loss)

    def absorb(self, state, proposal, round):
        sums = round.cohort.stats["class_features"]  # [K, C, 1 + d], means over the client's examples
        if self.by == "examples":
            pooled = (sums * round.cohort.stats["examples"].double()[:, None, None]).sum(0)
        else:
            has = (sums[..., :1] > 0).double()
            pooled = (sums / sums[..., :1].clamp_min(1e-300) * has).sum(0)
        count = pooled[:, :1]
        old = state.get("prototypes", torch.zeros_like(pooled[:, 1:]))
        return proposal, {"prototypes": torch.where(count > 0, pooled[:, 1:] / count.clamp_min(1e-300), old)}
