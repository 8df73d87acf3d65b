"""AFL hands out the mean of its global models; what clients start from is the last one."""

import numpy as np
import pytest
import torch
from torch import nn

import fedstrata as fs
from tests.federations import unequal_clients
from tests.slow import FIVE, flat, library, load

R, CLIENTS = fs.recipes, unequal_clients(FIVE)


def test_afl_shows_the_mean_of_the_models_of_all_rounds():
    last = [library(R.afl(average=False), t, FIVE).model for t in range(1, 5)]
    models = torch.stack([flat(m) for m in last])
    for t in range(1, 5):
        run = library(R.afl(), t, FIVE)
        mean = load(models[:t].mean(0))
        torch.testing.assert_close(run.model.state_dict(), mean.state_dict(), rtol=0, atol=1e-12)
        loss = nn.functional.cross_entropy(mean(CLIENTS.x), CLIENTS.y).item()
        assert run.final["train"]["loss"] == pytest.approx(loss, rel=1e-9)


def test_empty_rounds_do_not_count_in_afls_mean():
    w = {"a.weight": np.ones(2)}
    bad, good = (fs.Reply(client=0, model={"a.weight": np.full(2, v)}, examples=1, stats={"loss": 1.0})
                 for v in (np.nan, 3.0))  # fmt: skip
    recipe, state, model = R.afl(), None, w
    for reply in (bad, good, bad, good):
        out = fs.server_step(recipe, model, [reply], state)
        state, model = out.state, out.model
    assert state is not None
    shown = recipe.shown({n: s for n, s in state.items() if n != "server"}, torch.tensor([5.0, 5.0]).double())
    assert shown.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_of_many_models_does_not_stop_at_what_few_digits_can_count(dtype):
    recipe, state, model = R.afl(lr=0), None, {"a.weight": torch.tensor([1.0, 300.0], dtype=dtype)}
    for _ in range(300):
        reply = fs.Reply(client=0, model=model, examples=1, stats={"loss": 1.0})
        out = fs.server_step(recipe, model, [reply], state)
        state, model = out.state, out.model
    assert state is not None
    shown = recipe.shown({n: s for n, s in state.items() if n != "server"}, model["a.weight"])
    assert shown.dtype == dtype
    assert shown.tolist() == [1.0, 300.0]
