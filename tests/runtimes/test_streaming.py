"""Cohorts larger than memory: merged as they come where a recipe allows it, refused in a sentence where not."""

import pytest
import torch

import fedstrata as fs
from tests.federations import PLAIN, final_model, mlp, unequal_clients
from tests.runtimes.test_degenerate import with_saboteur

R = fs.recipes
A_FEW = 7 * 3 * 8 * sum(p.numel() for p in mlp().parameters()) / 2**30
"""GiB for seven updates, each three times in float64."""

CLIENTS = unequal_clients((9, 4, 20, 1, 7) * 4)


@pytest.mark.parametrize("name", PLAIN)
def test_a_round_in_pieces_equals_one_at_once_or_is_refused(name):
    recipe = R.METHODS[name]()
    if recipe.single:
        with pytest.raises(fs.FedstrataError, match=r"20 clients take .* GiB, there are .* must see each by itself"):
            final_model(recipe, clients=CLIENTS, memory=A_FEW)
        return
    whole, pieces = (final_model(recipe, clients=CLIENTS, memory=m) for m in (None, A_FEW))
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-9)


def test_most_of_the_usual_methods_can_be_streamed():
    streams = {n for n in PLAIN if not R.METHODS[n]().single}
    assert {"fedavg", "fedprox", "adaptive_fedprox", "scaffold", "moon", "fedadam", "fedavgm"} <= streams
    assert not {"fedlws", "fedlayerwise", "fedadp", "ldawa"} & streams


@pytest.mark.parametrize("engine", ["stacked", "pool", "apart"])
def test_every_engine_streams(engine):
    whole, pieces = (final_model(R.fedavg(), clients=CLIENTS, memory=m, engine=engine) for m in (None, A_FEW))
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-11)


def test_clients_that_return_nan_are_left_out_of_their_piece():
    settings = {"rounds": 2, "training": fs.SGD(lr=0.1, batch=5)}
    runs = [fs.simulate(with_saboteur(R.fedavg(), 20), mlp(), CLIENTS, memory=m, **settings) for m in (None, A_FEW)]
    assert [r["dropped"] for r in runs[0].rounds] == [[2, 7, 12, 17]] * 2
    assert [r["dropped"] for r in runs[1].rounds] == [[2, 7, 12, 17]] * 2
    whole, pieces = (torch.cat([p.flatten() for p in r.model.parameters()]) for r in runs)
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-9)
