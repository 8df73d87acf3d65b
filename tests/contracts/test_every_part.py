from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingImports]

import fedstrata as fs
from fedstrata.core import Part
from fedstrata.parts import (
    FOLB,
    LWS,
    AdaptiveProx,
    Angle,
    Calm,
    Calmest,
    FixedShrink,
    PerLayer,
    Prox,
    Sample,
    SelectiveProx,
)
from fedstrata.testing import check_part, check_value
from fedstrata.values import Value, kinds

OTHER_SETTINGS: list[Part] = [
    Sample(k=3), Sample(fraction=0.5, by="size"), Calmest(2, "loss", "size"),
    Prox(PerLayer((0.1, 0.2, 0.3))), AdaptiveProx(grain="layer", mu_init=0.5),
    FOLB(two_sample=True), FOLB(psi=0.5), SelectiveProx(batch=6, threshold=0.3, variance="gradient"),
    Angle(grain="model"), Angle(grain="tensor", sign=1, count="round"), Calm(2.0, "loss", normalise=True),
    LWS(grain="tensor"), LWS(grain="model", variant="only_opt"), LWS(variant="only_reg"), FixedShrink((1.0, 0.9, 0.8)),
]  # fmt: skip


def every_part() -> list[Part]:
    """Every concrete part of the package with its defaults, and the other settings above."""
    ours: list[type[Any]] = [c for c in kinds(Part).values() if c.__module__.startswith("fedstrata.parts")]
    return [c() for c in ours if c is not Sample] + OTHER_SETTINGS


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("part", every_part(), ids=repr)
def test_every_part_keeps_the_contract(part):
    check_part(part)


@pytest.mark.parametrize("name", fs.recipes.METHODS)
def test_every_named_recipe_is_plain_data(name):
    check_value(fs.recipes.METHODS[name]())


@pytest.mark.parametrize("value", [fs.SGD(lr=0.1, clip=1.0), fs.AdamW(), fs.Dirichlet(alpha=0.1), fs.IID(clients=3)])
def test_other_settings_are_plain_data_too(value: Value):
    check_value(value)


@dataclass(frozen=True)
class Forgetful(fs.Local):
    """Changes the shape of its memory."""

    def enroll(self, task, buffers):
        return {"a": task.layout.zeros()}

    def report(self, w, turn):
        return {"a": w[:2]}, {}


@dataclass(frozen=True)
class OrderBound(fs.Weigh):
    """Gives everything to whoever comes first."""

    def weights(self, state, round):
        return torch.eye(len(round.cohort), dtype=torch.float64)[:, :1], state


@dataclass(frozen=True)
class Scribbler(fs.Step):
    """Writes into what it was given."""

    def step(self, state, proposal, round):
        round.delta.mul_(2)
        return proposal, state


@dataclass(frozen=True)
class Careless(fs.Step):
    """Divides by how far the model moved."""

    def step(self, state, proposal, round):
        return proposal / (proposal - round.old).norm(), state


@dataclass(frozen=True)
class Batchwise(fs.Local):
    """Looks across the client axis it does not have, when there is more than one client."""

    def correct(self, grad, w, turn):
        return grad * (2.0 if is_batchedtensor(grad) else 1.0)


@dataclass(frozen=True)
class Overstated(fs.Step):
    """Says that it needs sums only, and looks for the largest update."""

    @property
    def additive(self):
        return True

    def step(self, state, proposal, round):
        return proposal + round.delta.abs().amax(), state


@dataclass
class Melted(fs.Step):  # pyright: ignore[reportGeneralTypeIssues]
    """Is not frozen."""

    beta: float = 1.0
    __hash__ = object.__hash__

    def step(self, state, proposal, round):
        return proposal, state


@dataclass
class Thawed(fs.Step):  # pyright: ignore[reportGeneralTypeIssues]
    """Is not frozen, as it is when one forgets it: then it cannot be hashed either."""

    beta: float = 1.0

    def step(self, state, proposal, round):
        return proposal, state


@dataclass(frozen=True)
class Stateless(fs.Weigh):
    """Forgets to give back the state."""

    def weights(self, state, round):  # pyright: ignore[reportIncompatibleMethodOverride]
        return round.share[:, None]


@dataclass(frozen=True)
class Flat(fs.Weigh):
    """Has no axis for the layers."""

    def weights(self, state, round):
        return round.share, state


@dataclass(frozen=True)
class Short(fs.Local):
    """Corrects a part of the gradient only."""

    def correct(self, grad, w, turn):
        return grad[:3]


@dataclass(frozen=True)
class Vector(fs.Local):
    """Adds a penalty for each parameter."""

    def penalty(self, w, turn, batch):
        return w * w


@dataclass(frozen=True)
class Row(fs.Step):
    """Makes a row of the model."""

    def step(self, state, proposal, round):
        return proposal[None], state


@dataclass(frozen=True)
class Halves(fs.Select):
    """Picks by numbers that are not whole."""

    def pick(self, state, stats, rng):
        return torch.tensor([0.0, 1.0]), state


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        (Thawed(), "Thawed is not frozen: declare it with"),
        (Stateless(), r"must return \(weights, state\); got Tensor"),
        (Flat(), r"must give a tensor \[K, L\], here \[4, 1\] at the grain 'model'; got \[4\]"),
        (Short(), r"Short.correct must give a tensor like the gradient, here \[47\]; got \[3\]"),
        (Vector(), r"Vector.penalty must give one number, a tensor \[\]; got a tensor \[47\]"),
        (Row(), r"Row.step must give a model, a tensor \[P\], here \[47\]; got \[1, 47\]"),
        (Halves(), r"Halves.pick must give positions .*, whole numbers from 0 to 6, .*; got a torch.float32"),
        (Forgetful(), "shape"), (OrderBound(), "order"), (Scribbler(), "wrote into"), (Careless(), "no client moved"),
        (Batchwise(), "stacked"), (Melted(), "hashes|frozen"), (Overstated(), "merged replies"),
    ],
)  # fmt: skip
def test_a_part_that_breaks_the_contract_is_caught(part, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_part(part)
