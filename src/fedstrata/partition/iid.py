"""Every client draws from the same distribution."""

from dataclasses import dataclass
from typing import final

import numpy as np

from fedstrata.partition.base import Dealt


@final
@dataclass(frozen=True)
class IID(Dealt):
    """Shuffle and deal: sizes differ by one at most."""

    def assign(self, y, draw):
        return np.array_split(draw.permutation(len(y)), self.clients)
