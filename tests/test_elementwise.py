"""Parts marked elementwise correct stacked clients as they correct each one: [K, P] at once is vmap of [P]."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import fedstrata as fs
from fedstrata.core import Local, Part
from fedstrata.descent import Desk, Federation, Given, _corrected, given_to, turn_of
from fedstrata.parts import DC, AdaptiveProx, Dyn, PerLayer, Prox, Scaffold, SelectiveProx
from fedstrata.testing import _Lab, check_part
from fedstrata.train import train
from fedstrata.values import kinds

LOCALS = [c for c in kinds(Part).values() if issubclass(c, Local) and c.__module__.startswith("fedstrata.parts")]

SETTINGS: list[Local] = [
    Prox(0.3), Prox(PerLayer((0.1, 2.0, 0.7))), Scaffold(), Scaffold(option=1), DC(0.4), DC(0.4, clip=1.0),
    AdaptiveProx(0.5), AdaptiveProx(0.5, grain="layer", mu_init=0.2), AdaptiveProx(0.5, grain="model", alpha=0.3),
    Dyn(0.3), Dyn(0.3, by_size=True), Dyn(0.3, unsquared=True), Dyn(0.3, by_size=True, unsquared=True, over="cohort"),
    SelectiveProx(0.5), SelectiveProx(0.5, batch=6), SelectiveProx(0.5, batch=6, threshold=0.3),
    SelectiveProx(0.5, threshold=0.1, variance="gradient"), SelectiveProx(0.5, two_phase=True),
    SelectiveProx(0.5, batch=5, resources=(1.0, 0.5, 0.2, 0.9, 0.3, 1.0, 0.6)),
]  # fmt: skip


def at_work(part: Local, dtype: torch.dtype) -> tuple[Federation, Given, Tensor, Tensor]:
    """(federation, what the clients of the third round were given, their global model, where four of them stand)."""
    lab = _Lab.of(part, dtype)
    state, memory = lab.state(), lab.memory()
    for number in range(2):
        told = train(lab.fed, lab.errand(state, memory, number))
        memory, round = told.memory, lab.round(told.delta, told)
        moved, _, state = lab.fed.recipe.aggregate(state, round, told.uploads)
        lab = replace(lab, cohort=replace(lab.cohort, model=moved))
    errand = lab.errand(state, memory, 2)
    stats = errand.stats | lab.asked(errand.probes)
    draw = torch.Generator().manual_seed(3)
    w = errand.start + 0.5 * torch.randn(4, len(errand.start), generator=draw, dtype=torch.float64).to(dtype)
    return lab.fed, given_to(lab.fed, errand, stats), errand.start, w


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("part", SETTINGS, ids=repr)
def test_stacked_clients_are_corrected_as_each_one_is(part: Local, dtype: torch.dtype):
    fed, given, start, w = at_work(part, dtype)
    grad = torch.linspace(-2, 3, w.numel(), dtype=dtype).view(w.shape).flip(1)

    def alone(grad: Tensor, w: Tensor, given: Given) -> Tensor:
        return part.correct(grad, w, turn_of(fed, "local.0", start, given, 0.1))

    desk = Desk(start, 0.1, given, w, {}, {})
    found, wanted = _corrected(fed, "local.0", part, grad, desk), vmap(alone)(grad, w, given)
    assert found.dtype == wanted.dtype == dtype  # a column of float64 would make all of it so
    assert found.shape == w.shape
    near: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {}
    torch.testing.assert_close(found, wanted, **near)
    one = _corrected(fed, "local.0", part, grad[:1], desk.first(1))
    torch.testing.assert_close(one, found[:1], **near)
    assert not torch.equal(found, grad)


def test_every_part_that_is_marked_is_tried_here():
    assert {c for c in LOCALS if c.elementwise} == {type(p) for p in SETTINGS}


def test_only_parts_that_correct_gradients_are_marked():
    assert all(c.correct is not Local.correct for c in LOCALS if c.elementwise)
    assert not Local.elementwise


@dataclass(frozen=True)
class ByNorm(fs.Local):
    """Divides by the norm of all that it sees."""

    elementwise = True

    def correct(self, grad, w, turn):
        return grad / (1 + w.norm())


@dataclass(frozen=True)
class ByFirst(fs.Local):
    """Looks at the first number alone."""

    elementwise = True

    def correct(self, grad, w, turn):
        return grad + w[0]


@dataclass(frozen=True)
class InTurn(fs.Local):
    """Sums over the numbers of a client, in the last axis."""

    elementwise = True

    def correct(self, grad, w, turn):
        return grad + (w - turn.start).mean(-1, keepdim=True)


def test_a_part_that_is_marked_wrongly_is_caught():
    for part in (ByNorm(), ByFirst()):
        with pytest.raises(AssertionError, match="stacked clients something else"):
            check_part(part)
    check_part(InTurn())
