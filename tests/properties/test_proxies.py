"""The methods that look at data of the server's own keep the same laws, with a model that can be run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedstrata as fs
from tests.properties.cases import GIVEN, GUEST, LR, POPULATION, PROFILE, Model, bits

METHODS = [n for n, m in fs.recipes.METHODS.items() if "proxy" in m().needs and m().needs - {"proxy"} <= GIVEN]
NET = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
START = {n: torch.full_like(v, 1) if v.dtype.is_floating_point else v for n, v in NET.state_dict().items()}


def step(name: str, replies: list[fs.Reply]) -> fs.Outcome:
    draw = torch.Generator().manual_seed(0)
    proxy = fs.Proxy.of(NET, torch.randn(8, 3, generator=draw), torch.arange(8) % 2)
    return fs.server_step(fs.recipes.METHODS[name](), START, replies, None, POPULATION, proxy, LR)


@st.composite
def cohorts(draw: st.DrawFn) -> list[fs.Reply]:
    """Replies with models near the start."""
    someone = st.tuples(st.integers(0, GUEST - 1), st.integers(1, 99))
    who = st.lists(someone, min_size=1, max_size=4, unique_by=lambda c: c[0])
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))

    def model() -> Model:
        return {n: (v + 0.3 * torch.rand(v.shape, generator=numbers)).to(v.dtype) for n, v in START.items()}

    return [fs.Reply(i, model(), n, {"labels": np.ones(2)}) for i, n in draw(who)]


@pytest.mark.parametrize("name", METHODS)
@settings(PROFILE, max_examples=4)
@given(replies=cohorts(), data=st.data())
def test_the_outcome_has_the_models_form_whatever_the_order_of_replies(name, replies: list[fs.Reply], data):
    out, other = step(name, replies), step(name, data.draw(st.permutations(replies)))
    assert bits(out.model) == bits(other.model)
    for n, v in START.items():
        assert (out.model[n].dtype, out.model[n].shape) == (v.dtype, v.shape)
        assert out.model[n].isfinite().all()


@pytest.mark.parametrize("name", METHODS)
@settings(PROFILE, max_examples=4)
@given(replies=cohorts())
def test_a_client_that_is_not_finite_might_as_well_not_have_replied(name, replies: list[fs.Reply]):
    bad = replace(replies[0], client=GUEST, model={n: v * torch.nan for n, v in START.items()})
    out = step(name, [*replies, bad])
    assert out.dropped == [GUEST]
    assert bits(out.model) == bits(step(name, replies).model)
