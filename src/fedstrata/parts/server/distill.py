"""FedDF and FedBE: the average learns from an ensemble, on data of the server's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from fedstrata.core import Proxy, Round, Step
from fedstrata.errors import check
from fedstrata.layout import Arrays
from fedstrata.rng import rng


@final
@dataclass(frozen=True)
class Distill(Step):
    """FedDF (Lin et al. 2020): from the average, minimise KL(softmax(mean of the teachers' logits) || student).

    Labels are not looked at. The teachers are the clients. teachers = "bayes" (FedBE, Chen & Chao 2021) adds the
    average itself and `samples` models drawn around the clients': "gaussian" from the mean and variance of the clients'
    updates, each scaled to length 1 tensor by tensor; "dirichlet" random mixtures of the clients. swa = True hands out
    the mean of the student over the second half of the epochs. Adam; running statistics stay those of the average.
    """

    teachers: Literal["clients", "bayes"] = "clients"
    epochs: int = 20
    lr: float = 1e-3
    batch: int = 128
    samples: int = 10
    draw: Literal["gaussian", "dirichlet"] = "gaussian"
    swa: bool = False

    def validate(self):
        check(self.epochs >= 0, f"Distill.epochs must not be negative; got {self.epochs}")
        check(self.lr > 0, f"Distill.lr must be above 0; got {self.lr}")
        check(self.batch >= 1, f"Distill.batch must be at least 1; got {self.batch}")
        check(self.samples >= 0, f"Distill.samples must not be negative; got {self.samples}")

    @property
    def needs(self):
        return frozenset({"proxy"})

    def step(self, state, proposal, round):
        assert round.proxy is not None  # checked before anything ran
        batches = round.proxy.batches(self.batch)
        with torch.no_grad():
            lessons = [self._lesson(part, proposal, round) for part in batches]
        student = proposal.clone().requires_grad_()
        adam = torch.optim.Adam([student], self.lr)
        path = []
        for _ in range(self.epochs):
            for part, lesson in zip(batches, lessons, strict=True):
                adam.zero_grad()
                told = torch.log_softmax(part.outputs(student), -1)
                torch.nn.functional.kl_div(told, lesson, reduction="batchmean").backward()
                adam.step()
            path.append(student.detach().clone())
        late = path[len(path) // 2 :] if self.swa and path else [student.detach()]
        return torch.stack(late).mean(0), state

    def _lesson(self, part: Proxy, proposal: Tensor, round: Round) -> Tensor:
        """What the teachers say together, [B, C]: softmax of their mean logits."""
        logits = [part.outputs(w, buffers) for w, buffers in self._faculty(proposal, round)]
        return torch.softmax(torch.stack(logits).mean(0), -1)

    def _faculty(self, proposal: Tensor, round: Round) -> Sequence[tuple[Tensor, Arrays | None]]:
        """Every teacher: a model [P] and its buffers."""
        clients = [(round.old + d, round.buffers.of(k)) for k, d in enumerate(round.delta)]
        if self.teachers == "clients":
            return clients
        noise = rng(round.seed, "teachers", round.cohort.number)
        if self.draw == "dirichlet":
            shares = torch.from_numpy(noise.dirichlet([1.0] * len(round.delta), self.samples))
            drawn = round.old + shares.to(round.delta) @ round.delta
        else:
            normal = torch.from_numpy(noise.standard_normal((self.samples, len(proposal))))
            drawn = around(round, normal.to(round.delta))
        return [*clients, (proposal, None), *((w, None) for w in drawn)]


def around(round: Round, noise: Tensor) -> Tensor:
    """Models drawn from a Gaussian, [S, P]: w + |D| (mean u + std u noise), u the clients' updates of length 1."""
    layout = round.layout.at("tensor")
    size = layout.norm(round.delta)  # [K, T]
    u = round.delta * layout.spread(torch.where(size > 0, 1 / size.clamp_min(1e-300), 0.0))
    return round.old + layout.spread(size.mean(0)) * (u.mean(0) + u.var(0, correction=0).sqrt() * noise)
