"""The cohort's updates and what the server asks of them, norms, angles, distances, mixtures, in few passes."""

from collections.abc import Iterable
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata import fused
from fedstrata.layout import Grain, Layout
from fedstrata.tables import finite_rows

MEAN, EVEN, BACK = range(3)
"""What updates are compared with in a pass: their mean by weights, their plain mean, the way back to zero."""

SIZE, MOVE = 3, 4
"""Beside the sizes of these, that of the old model and that of the average's move."""

LOOKS = {"angle": (MEAN, "DOT"), "apart": (EVEN, "GAP"), "moved": (BACK, "GAP")}
"""What a pass has to sum up of each client, and compared with what."""


FAR = 1e10
"""Squares so many times as large as others leave those no digits that a cosine could be told by."""


class Updates:
    """K updates [K, P] of a model [P]. Norms and the like are [K, L] at any grain, in float64; nothing is worked out
    before it is asked for.

    `looks` says what will be asked for: "average", "angle", "apart", "moved". On a CPU with numba, one pass over the
    updates then does for all of that; without it, each is a pass of torch's.
    """

    def __init__(
        self, layout: Layout, delta: Tensor, old: Tensor, examples: Tensor, mass: Tensor, looks: Iterable[str] = ()
    ) -> None:
        self.layout, self.delta, self.old, self.examples = layout, delta, old, examples
        self.share = _scaled(examples)  # [K] p_k = n_k / n
        self.weights = self.share if mass is examples else _scaled(mass)  # [K] of the average
        self._looks, self._norms = set(looks), dict[Grain, Tensor]()
        self._sums: dict[str, fused.Sums] = {}
        self._average: Tensor | None = None
        self.fused = fused.fits(delta, old)

    def norm(self, grain: Grain) -> Tensor:
        """|delta_k|, [K, L]."""
        if grain not in self._norms:
            layout = self.layout.at(grain)
            sums = self._any() if self.fused else None
            self._norms[grain] = layout.norm(self.delta) if sums is None else _root(sums.at(layout)[0][sums.first, 0])
        return self._norms[grain]

    def cos_mean(self, grain: Grain, when_zero: float = 0.0) -> Tensor:
        """The cosine of delta_k and the mean update sum_k p_k delta_k, [K, L]."""
        layout = self.layout.at(grain)
        if not self.fused:
            return layout.cos(self.delta, self.share.to(self.delta.dtype) @ self.delta, when_zero)
        of_clients, of_vectors = self._look("angle").at(layout)
        squares, dots = of_clients[MEAN]
        return fused.cosine(dots, squares, of_vectors[MEAN], when_zero)

    def cos_old(self, grain: Grain, when_zero: float = 0.0) -> Tensor:
        """The cosine of the client's model old + delta_k and the old one, [K, L]."""
        layout = self.layout.at(grain)
        if not self.fused:
            return layout.cos(self.delta, self.old, when_zero, moved=True)
        of_clients, of_vectors = self._look("moved").at(layout)
        size, (squares, after) = of_vectors[BACK], of_clients[BACK]
        if ((squares > FAR * size) & (size > 0) | (size > FAR * after) & (after > 0)).any():
            return layout.cos(self.delta, self.old, when_zero, moved=True)  # the difference below would be rounding
        dots = (after + size - squares) / 2  # |w + d|^2 = |w|^2 + 2 <w, d> + |d|^2
        return fused.cosine(dots, after, size, when_zero)

    def apart(self, grain: Grain) -> Tensor:
        """|delta_k - plain mean of all delta|, [K, L]."""
        layout = self.layout.at(grain)
        return _root(self._look("apart").at(layout)[0][EVEN, 1]) if self.fused else layout.apart(self.delta)

    def size(self, grain: Grain) -> Tensor:
        """|old|, [L]."""
        layout, sums = self.layout.at(grain), self._sums.get("average")
        return layout.norm(self.old) if sums is None else _root(sums.at(layout)[1][SIZE])

    def move(self, proposal: Tensor, grain: Grain) -> Tensor:
        """|proposal - old|, [L]; known already where the proposal is the average itself."""
        layout = self.layout.at(grain)
        if proposal is self._average:
            return _root(self._sums["average"].at(layout)[1][MOVE])
        return layout.distance(proposal, self.old)

    def mix(self, weights: Tensor, grain: Grain, keep: Tensor | None = None) -> Tensor:
        """keep_l old + sum_k weights_k,l delta_k, [P], from weights [K, L]; all of the old model unless said."""
        layout = self.layout.at(grain)
        if self.fused and not weights.requires_grad:
            weights = weights.double()
            if keep is None and torch.equal(weights, self.weights[:, None]) and self._averaged():
                assert self._average is not None
                return self._average
            return fused.mix(layout, self.delta, self.old, weights, layout.full(1.0) if keep is None else keep.double())
        moved = layout.mix(weights, self.delta)
        return self.old + moved if keep is None else layout.spread(keep) * self.old + moved

    def scale(self, a: Tensor, x: Tensor, grain: Grain) -> Tensor:
        """a_l x, [P], from scalars [L]."""
        if self.fused and fused.plain(self.old, x):
            return fused.blend(self.layout.at(grain), a, x, torch.zeros_like(a), x)
        return self.layout.at(grain).spread(a) * x

    def blend(self, a: Tensor, x: Tensor, b: Tensor, y: Tensor, grain: Grain) -> Tensor:
        """a_l x + b_l y, [P], from scalars [L]: for models, by the same loops as the rest."""
        layout = self.layout.at(grain)
        if self.fused and fused.plain(self.old, x, y):
            return fused.blend(layout, a, x, b, y)
        return layout.spread(a) * x + layout.spread(b) * y

    def finite(self) -> Tensor:
        """Which clients' updates have no NaN and no infinity, [K]."""
        if not self.fused:
            return finite_rows([self.delta])
        if self._any().finite():  # the squares of float32 cannot overflow in float64
            return torch.ones(len(self.delta), dtype=torch.bool)
        return finite_rows([self.delta])  # those of float64 can

    def sound(self, model: Tensor) -> bool:
        """Whether this model, [P], has neither NaN nor infinity."""
        if model is self._average:  # whose move from the old one was summed up
            sums = self._sums["average"].sizes[:, (SIZE, MOVE)].sum()
        else:
            quick = self.fused and fused.plain(self.old, model)
            sums = fused.square(self.layout, model) if quick else float(model.sum())
        return isfinite(sums) or bool(model.isfinite().all())  # finite numbers may have been too large to add up

    def _averaged(self) -> bool:
        """Whether a pass has made the average, or makes it now."""
        if "average" in self._looks:
            self._look("norm")
        return self._average is not None

    def _any(self) -> fused.Sums:
        """The sums of any pass: all tell |delta_k|^2."""
        return next(iter(self._sums.values())) if self._sums else self._look("norm")

    def _look(self, wanted: str) -> fused.Sums:
        """The sums of a pass that looked for this, and for what else is known to be wanted."""
        if wanted not in self._sums:
            looks = (self._looks | {wanted}) - self._sums.keys()
            by = self.share if "angle" in looks else self.weights
            writes = "average" in looks and torch.equal(by, self.weights)
            kinds = dict(LOOKS[look] for look in looks & LOOKS.keys())
            sums, average = fused.look(self.layout, self.delta, self.old, by, kinds or {MEAN: "SQUARE"}, writes)
            self._sums |= dict.fromkeys(looks if writes else looks - {"average"}, sums)
            self._average = average if writes else self._average
            self._looks = set()
        return self._sums[wanted]


def _scaled(mass: Tensor) -> Tensor:
    """Weights that sum to 1, in float64."""
    mass = mass.double()
    return mass / mass.sum()


def _root(squares: NDArray[Any]) -> Tensor:
    """Norms from their squares, which stay as they are."""
    return torch.from_numpy(np.sqrt(squares))
