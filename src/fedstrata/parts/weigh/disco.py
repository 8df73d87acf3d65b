"""FedDisco: clients whose labels are distributed unlike the target count less."""

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from fedstrata.core import Weigh
from fedstrata.errors import DataError, SettingError, check


@final
@dataclass(frozen=True)
class Disco(Weigh):
    """FedDisco (Ye et al. 2023, Eq. 5): weights ~ ReLU(p_k - a d_k + b), d_k the distance of k's labels to the target.

    The target is uniform unless given. "kl" is divided by its sum over the cohort, as the authors' code does. Where all
    weights are cut to zero, p_k.
    """

    a: float = 0.5
    b: float = 0.1
    distance: Literal["kl", "l2", "l1", "cosine"] = "kl"
    target: tuple[float, ...] | None = None

    def validate(self):
        target = self.target or (1.0,)
        check(
            min(target) >= 0 and sum(target) > 0,
            f"Disco.target must be numbers from 0 that add up to 1; got {self.target}",
        )

    @property
    def needs(self):
        return frozenset({"labels"})

    def weights(self, state, round):
        counts, share = round.cohort.stats["labels"].double(), round.share
        q = counts / counts.sum(1, keepdim=True).clamp_min(1)  # [K, C]
        d = self._distances(q, self._target(q))
        round.note(distance=d)
        raw = torch.where(share > 0, torch.relu(share - self.a * d + self.b), 0.0)
        return torch.where(raw.sum() > 0, raw / raw.sum().clamp_min(1e-300), share)[:, None], state

    def _target(self, q: Tensor) -> Tensor:
        if self.target is None:
            return torch.full_like(q[0], 1 / q.shape[1])
        if len(self.target) != q.shape[1]:
            raise SettingError(f"Disco.target has {len(self.target)} classes but the data has {q.shape[1]}")
        t = torch.tensor(self.target, dtype=q.dtype, device=q.device)
        return t / t.sum()

    def _distances(self, q: Tensor, t: Tensor) -> Tensor:
        """d_k, [K]."""
        if self.distance == "cosine":
            return 1 - torch.cosine_similarity(q, t[None], 1, eps=1e-300)
        if self.distance in ("l1", "l2"):
            return torch.linalg.vector_norm(q - t, ord=1 if self.distance == "l1" else 2, dim=1)
        if bool(((q > 0) & (t == 0)).any()):
            raise DataError("Disco: a client holds a class whose target is 0, where the distance 'kl' is infinite")
        ratio = torch.where(q > 0, q / t.clamp_min(1e-300), 1.0)
        d = (q * ratio.log()).sum(1)
        return torch.where(d.sum() > 0, d / d.sum().clamp_min(1e-300), 0.0)
