"""Client memories by id, created on the first visit."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedstrata.core import State


class Vault:
    """What each client remembers between its turns. Rows live in host memory and travel to the device for a round."""

    def __init__(self, fresh: State):
        self.fresh = fresh
        self.memories: dict[int, State] = {}

    def take(self, ids: Sequence[int], device: torch.device, *parts: str) -> State:
        """These clients' memories, stacked, [K, ...] each; of some parts only where those are named."""
        rows = [{n: v for n, v in self.memories.get(i, self.fresh).items() if n in (parts or self.fresh)} for i in ids]
        return tree_map(lambda *vs: torch.stack([v.to(device) for v in vs]), *rows)

    def put(self, ids: Sequence[int], stacked: State, keep: Tensor) -> None:
        """Remember what these clients brought back, except where `keep`, [K], is false."""
        for j, i in enumerate(ids):
            if keep[j]:
                self.memories[i] = tree_map(lambda v, j=j: v[j].to("cpu", copy=True), stacked)
