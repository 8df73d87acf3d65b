"""FedETF: a classifier that nobody trains, so that no client can bend it to its own labels."""

from dataclasses import dataclass
from typing import final

import torch
from torch.nn.functional import pad

from fedstrata.core import Local
from fedstrata.errors import check
from fedstrata.surgery import ETFHead, with_head


@final
@dataclass(frozen=True)
class ETF(Local):
    """FedETF (Li et al. 2023): logits = scale z^T V with a fixed simplex V, z = normalise(Linear(features)).

    A client minimises the cross entropy of logits + log n_k,c (balanced softmax; n_k,c its own class counts, 0 read as
    1). The projection and the scale are trained and averaged. Authors start the scale at 10 for a CNN, 1 for ResNets.
    """

    scale: float = 10.0
    width: int | None = None  # of z: that of the features unless given, and never below the number of classes

    def validate(self):
        check(self.scale > 0, f"ETF.scale must be above 0; got {self.scale}")
        check(self.width is None or self.width >= 1, f"ETF.width must be at least 1; got {self.width}")

    @property
    def needs(self):
        return frozenset({"labels"})

    @property
    def private(self):
        return frozenset({"labels"})

    def adapt_model(self, model, seed):
        return with_head(model, seed, lambda old: ETFHead(old, self.scale, self.width), "ETF")

    def outputs(self, outputs, turn):
        counts = turn.stats["labels"]
        counts = pad(counts, (0, outputs.shape[-1] - counts.shape[-1]))
        return outputs + torch.log(counts.clamp_min(1)).to(outputs.dtype)
