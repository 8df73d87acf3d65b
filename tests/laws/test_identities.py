"""Identities: settings at which one method is another, cohorts at which weighing cannot matter."""

import pytest
import torch

import fedstrata as fs
from fedstrata.clients import Clients, training_batches
from fedstrata.parts import LWS, Equal, PerLayer, Prox, Sample, Scaffold
from fedstrata.recipes import recipe
from tests.federations import PLAIN, final_model, flat, mlp, unequal_clients

R = fs.recipes


NOT_OF_ONE = {
    "qfedavg", "scaffold", "feddyn", "feddc", "ldawa", "awd", "adadecay", "fedadagrad", "fedadam", "fedyogi", "ccvr",
    "fedlws_official", "feddyn_fedlaw", "fedadam_fedlaw", "fedadam_flower",
}  # fmt: skip
"""Methods that correct, decay or step from a single client's model too."""


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (R.fedprox(mu=0.0), R.fedavg()),
        (R.adaptive_fedprox(mu=0.0), R.fedavg()),
        (R.adaptive_fedprox(mu=0.3, alpha=0.0), R.fedprox(mu=0.3)),
        (R.fedprox(mu=PerLayer((0.3, 0.3))), R.fedprox(mu=0.3)),
        (R.fedlws(beta=0.0), R.fedavg()),
        (R.fedlws(beta=0.0, mode="model"), R.fedavg()),
        (R.fedlws(beta=0.0, variant="only_opt"), R.fedavg()),
        (R.moon(mu=0.0), R.fedavg()),
        (R.fedpbs(mu=0.0, aggregation="samples"), R.fedavg()),
        (R.fedpbs(mu=0.5, batch=1000), R.fedprox(mu=0.5, weighting="uniform")),
        (R.fedbs(tau=0.0), R.fedavg(weighting="uniform")),
        (recipe(local=(Scaffold(), Prox(0.0)), weigh=Equal()), R.scaffold()),
        (R.fedavg(select=Sample(fraction=1.0)), R.fedavg()),
    ],
    ids=str,
)
def test_these_settings_make_one_method_the_other(one, other):
    assert close(final_model(one), final_model(other))


@pytest.mark.parametrize(
    "different",
    [R.fedprox(mu=0.3), R.adaptive_fedprox(mu=0.3), R.fedlws(beta=0.1), R.fedlws(mode="fixed"), R.moon(), R.fedadp(),
     R.fedlayerwise(), R.scaffold(), R.feddyn(alpha=0.1), R.fedpbs(), R.fedbs(), R.fedavg(weighting="uniform")],
    ids=lambda r: repr(r)[:60],
)  # fmt: skip
def test_otherwise_a_method_is_not_fedavg(different):
    assert not torch.allclose(final_model(different), final_model(R.fedavg()), atol=1e-6)


def test_adaptive_mu_is_not_constant_mu():
    assert not close(final_model(R.adaptive_fedprox(mu=0.3)), final_model(R.fedprox(mu=0.3)))


IDENTICAL = Clients.of([(unequal_clients().x[:20], unequal_clients().y[:20])] * 4)


@pytest.mark.parametrize("method", [R.fedadp(), R.fedlayerwise(), R.fedlws(beta=0.5), R.fedbs(), R.fedavg("uniform")])
def test_identical_clients_make_every_weighting_and_shrinking_fedavg(method):
    train = fs.SGD(lr=0.1, batch=None, epochs=3)  # full batches: identical clients move identically
    settings = {"clients": IDENTICAL, "training": train}
    assert torch.allclose(final_model(method, **settings), final_model(R.fedavg(), **settings), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in PLAIN if n not in NOT_OF_ONE])
def test_a_cohort_of_one_gives_that_clients_model(name):
    clients = Clients.of([(unequal_clients().x[:20], unequal_clients().y[:20])])
    train = fs.SGD(lr=0.1, batch=6, epochs=2)
    got = final_model(R.METHODS[name](), clients=clients, training=train, rounds=1)
    plain = R.fedprox(mu=0.001, plain_sgd=True)
    held = {"fedprox": R.fedprox(), "adaptive_fedprox": R.fedprox(), "fedprox_fedlaw": plain, "fedetf": R.fedetf()}
    held = held.get(name, R.fedavg())
    assert close(got, final_model(held, clients=clients, training=train, rounds=1))


def test_one_client_is_centralised_training_with_the_same_batches():
    x, y = unequal_clients().x, unequal_clients().y
    train = fs.SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01, batch=8, epochs=2, reset_optimizer=False)
    run = fs.simulate(R.fedavg(), mlp(), [(x, y)], rounds=3, training=train, seed=4)
    central = mlp()
    sgd = torch.optim.SGD(central.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
    for number in range(3):
        schedule = training_batches(Clients.of([(x, y)]), [0], train, 4, number)
        for rows, count in zip(schedule.index[0], schedule.count[0], strict=True):
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(central(x[rows[:count]]), y[rows[:count]]).backward()
            sgd.step()
    torch.testing.assert_close(flat(run.model), flat(central), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", PLAIN)
def test_the_order_of_clients_does_not_matter(name):
    """The same clients under other numbers: full batches, so that numbers decide nothing else."""
    clients, order = unequal_clients(), [3, 0, 6, 2, 5, 1, 4]
    swapped = Clients.split(clients.x, clients.y, [clients.rows[i] for i in order])
    train = fs.SGD(lr=0.1, batch=None, epochs=3)
    one, other = (final_model(R.METHODS[name](), clients=c, training=train) for c in (clients, swapped))
    assert torch.allclose(one, other, rtol=0, atol=1e-10)


def test_lws_gamma_is_in_0_1_and_falls_with_beta():
    def gammas(beta: float) -> torch.Tensor:
        run = fs.simulate(R.fedavg(shrink=LWS(beta)), mlp(), unequal_clients(), rounds=1)
        return run.notes[0]["gamma"]

    few, many = gammas(0.1), gammas(1.0)
    assert ((few > 0) & (few < 1)).all()
    assert (many < few).all()


def test_lws_leaves_a_zero_layer_alone():
    model = mlp()
    torch.nn.init.zeros_(model[2].weight)  # pyright: ignore[reportIndexIssue]
    torch.nn.init.zeros_(model[2].bias)  # pyright: ignore[reportIndexIssue]
    run = fs.simulate(R.fedlws(beta=10.0), model, unequal_clients(), rounds=1)
    assert run.notes[0]["gamma"][1] == 1
    assert run.notes[0]["gamma"][0] < 1


def test_only_opt_and_only_reg_are_the_two_halves_of_full():
    """From w' = w - gamma eta g - (1 - gamma) w: full - w_hat = (only_opt - w_hat) + (only_reg - w_hat)."""
    hat = final_model(R.fedavg(), rounds=1)
    full, opt, reg = (final_model(R.fedlws(1.0, variant=v), rounds=1) for v in ("full", "only_opt", "only_reg"))
    assert close(full - hat, (opt - hat) + (reg - hat))


def test_adaptive_mu_stays_within_its_bound_and_the_fastest_layer_keeps_it():
    run = fs.simulate(R.adaptive_fedprox(mu=0.2), mlp(), unequal_clients(), rounds=5)
    mu = torch.stack([n["mu"] for n in run.notes])
    assert ((mu >= 0) & (mu <= 0.2 + 1e-12)).all()
    assert torch.allclose(mu.max(1).values[:1], torch.tensor(0.2, dtype=torch.float64))
    assert (mu[-1] < 0.2).any()
