"""FedDF and FedBE: the average learns from an ensemble, on data of the server's own."""

from collections.abc import Iterator, Sequence
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
            lessons = self._lessons(batches, proposal, round)
            apart = max(float(_divergence(part, proposal, p)) for part, p in zip(batches, lessons, strict=True))
        if apart <= 4 * torch.finfo(proposal.dtype).eps:
            return proposal, state  # nothing to learn: Adam would make whole steps out of rounding
        student = proposal.clone().requires_grad_()
        adam = torch.optim.Adam([student], self.lr)
        path = []
        for epoch in range(self.epochs):
            for part, lesson in zip(batches, lessons, strict=True):
                adam.zero_grad()
                _divergence(part, student, lesson).backward()
                adam.step()
            if self.swa and epoch >= self.epochs // 2:
                path.append(student.detach().clone())
        return torch.stack(path).mean(0) if path else student.detach(), state

    def _lessons(self, batches: Sequence[Proxy], proposal: Tensor, round: Round) -> list[Tensor]:
        """What the teachers say together of each batch, [B, C]: softmax of their mean logits."""
        logits = [[part.outputs(w, own) for part in batches] for w, own in self._faculty(proposal, round)]
        return [torch.softmax(torch.stack(said).mean(0), -1) for said in zip(*logits, strict=True)]

    def _faculty(self, proposal: Tensor, round: Round) -> Iterator[tuple[Tensor, Arrays | None]]:
        """Every teacher, one at a time: a model [P] and its buffers."""
        for k, d in enumerate(round.delta):
            yield round.old + d, round.buffers.of(k)
        if self.teachers == "clients":
            return
        yield proposal, None
        noise = rng(round.seed, "teachers", round.cohort.number)
        if self.draw == "dirichlet":
            shares = torch.from_numpy(noise.dirichlet([1.0] * len(round.delta), self.samples))
            drawn = round.old + shares.to(round.delta) @ round.delta
        else:
            normal = torch.from_numpy(noise.standard_normal((self.samples, len(proposal))))
            drawn = around(round, normal.to(round.delta))
        yield from ((w, None) for w in drawn)


def _divergence(part: Proxy, student: Tensor, lesson: Tensor) -> Tensor:
    """KL(lesson || student), the mean over the examples."""
    told = torch.log_softmax(part.outputs(student), -1)
    return torch.nn.functional.kl_div(told, lesson, reduction="batchmean")


def around(round: Round, noise: Tensor) -> Tensor:
    """Models drawn from a Gaussian, [S, P]: w + |D| (mean u + std u noise), u the clients' updates of length 1."""
    layout = round.layout.at("tensor")
    size = round.updates.norm("tensor")  # [K, T]
    u = round.delta * layout.spread(torch.where(size > 0, 1 / size.clamp_min(1e-300), 0.0))
    return round.old + layout.spread(size.mean(0)) * (u.mean(0) + u.var(0, correction=0).sqrt() * noise)
