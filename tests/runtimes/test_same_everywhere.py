"""The same recipe gives the same model stacked, in chunks of any size, and one client after another."""

import pytest
import torch

import fedstrata as fs
from fedstrata.runtimes import choose
from fedstrata.runtimes import vault as vaults
from tests.federations import PLAIN, final_model, mlp, unequal_clients

R = fs.recipes


@pytest.mark.parametrize("name", PLAIN)
def test_stacked_clients_equal_single_ones(name):
    together, apart = (final_model(R.METHODS[name](), engine=r) for r in ("stacked", "apart"))
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "moon"])
def test_and_differs_when_client_memory_is_lost(name, monkeypatch):
    kept = final_model(R.METHODS[name](), rounds=4)
    monkeypatch.setattr(vaults.Vault, "put", lambda *_: None)
    assert not torch.allclose(kept, final_model(R.METHODS[name](), rounds=4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", PLAIN)
def test_worker_processes_equal_single_clients(name):
    pooled, apart = (final_model(R.METHODS[name](), engine=r) for r in ("pool", "apart"))
    torch.testing.assert_close(pooled, apart, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "moon", "fedpbs", "fedlws"])
def test_the_number_of_workers_does_not_change_a_bit(name, monkeypatch):
    monkeypatch.setattr(choose, "cores", lambda: 3)
    settings = {"model": mlp(dtype=torch.float32), "clients": unequal_clients((9, 4, 20, 1) * 2), "engine": "pool"}
    one, two, three = (final_model(R.METHODS[name](), workers=w, **settings) for w in (1, 2, 3))
    assert torch.equal(one, two)
    assert torch.equal(one, three)


@pytest.mark.parametrize("name", PLAIN)
def test_the_size_of_chunks_does_not_matter(name):
    """In float32, as people run it: to 1e-5; where FedAdam divides by the first updates' own size, to 1e-3."""
    settings = {"model": mlp(dtype=torch.float32), "clients": unequal_clients((9, 4, 20, 1) * 5)}
    models = [final_model(R.METHODS[name](), chunk=c, **settings) for c in (1, 7, 20)]
    for other in models[1:]:
        torch.testing.assert_close(models[0], other, rtol=0, atol=1e-3 if name == "fedadam_fedlaw" else 1e-5)


@pytest.mark.parametrize("training", [
    fs.SGD(lr=0.05, momentum=0.9, reset_optimizer=False), fs.Adam(lr=0.01, reset_optimizer=False),
    fs.AdamW(lr=0.01), fs.SGD(lr=0.1, steps=7, clip=0.5), fs.SGD(lr=0.1, batch=4, drop_last=True, decay=0.9),
], ids=repr)  # fmt: skip
def test_every_optimiser_gives_the_same_stacked_and_apart(training):
    together, apart = (final_model(R.fedavg(), engine=r, training=training) for r in ("stacked", "apart"))
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-11)


def test_kept_optimiser_state_makes_a_difference():
    kept, fresh = (
        final_model(R.fedavg(), training=fs.SGD(lr=0.05, momentum=0.9, reset_optimizer=r)) for r in (False, True)
    )
    assert not torch.allclose(kept, fresh, atol=1e-6)


def test_one_seed_gives_one_run_and_another_seed_another():
    one, again, other = (final_model(R.fedavg(select=fs.parts.Sample(k=3)), seed=s) for s in (5, 5, 6))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other, atol=1e-6)


class Fragile(torch.nn.Module):
    """Fails on data it does not like; a parameter of its own makes that vmap's business."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        if self.training and bool((x > 99).any()):
            raise RuntimeError("a value above 99")
        return self.layer(x) * self.scale


def test_what_cannot_be_stacked_says_what_to_do():
    with pytest.raises(fs.FedstrataError, match=r"round 0: the stacked clients failed .* engine = 'apart' names"):
        fs.simulate(
            R.fedavg(), Fragile(), unequal_clients(), rounds=1, engine="stacked"
        )  # a condition on data, which vmap cannot stack
    assert fs.simulate(R.fedavg(), Fragile(), unequal_clients(), rounds=1, engine="apart").final["train"]["loss"] > 0


def test_apart_names_the_stage_the_round_and_the_client():
    clients = unequal_clients()
    clients.x[clients.rows[4][0]] = 100.0
    with pytest.raises(fs.FedstrataError, match=r"round 0, client 4, training: RuntimeError: a value above 99"):
        fs.simulate(R.fedavg(), Fragile(), clients, rounds=1, engine="apart")
