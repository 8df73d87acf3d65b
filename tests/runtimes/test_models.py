"""BatchNorm, tied weights, frozen parameters, dropout, recurrence: any nn.Module trains under every recipe."""

from typing import Any

import pytest
import torch
from torch import nn

import fedstrata as fs
from fedstrata.dropout import client_noise, heed_noise
from tests.federations import PLAIN, unequal_clients
from tests.runtimes.test_unequal_clients import bn_cnn, image_clients

R = fs.recipes
TRAIN = fs.SGD(lr=0.05, batch=6, epochs=2)


class Tied(nn.Module):
    """Two hidden layers that share one weight: the same Parameter, or two Parameters on one storage."""

    def __init__(self, by: str = "parameter"):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = (nn.Linear(6, n, dtype=torch.float64) for n in (6, 6, 3))
        self.second.weight = self.first.weight if by == "parameter" else nn.Parameter(self.first.weight.data)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).relu())


@pytest.mark.parametrize("name", PLAIN)
def test_a_batchnorm_cnn_trains_under_every_recipe(name):
    run = fs.simulate(R.METHODS[name](), bn_cnn(), image_clients(), rounds=2, training=TRAIN)
    state, first = run.model.state_dict(), bn_cnn().state_dict()
    assert all(v.isfinite().all() for v in state.values())
    assert not torch.equal(state["1.running_mean"], first["1.running_mean"])
    assert state["1.num_batches_tracked"] > 0
    assert state["1.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("by", ["parameter", "storage"])
@pytest.mark.parametrize("name", PLAIN)
def test_tied_weights_stay_tied_under_every_recipe(name, by):
    run = fs.simulate(R.METHODS[name](), Tied(by), unequal_clients(), rounds=2, training=TRAIN)
    state = run.model.state_dict()
    assert torch.equal(state["first.weight"], state["second.weight"])
    assert not torch.equal(state["first.weight"], Tied().first.weight)
    assert run.layout.aliases == (("second.weight", "first.weight"),)


def test_two_ways_of_tying_are_one():
    tied = Tied("parameter"), Tied("storage")
    runs = [fs.simulate(R.fedlws(), model, unequal_clients(), rounds=2, training=TRAIN) for model in tied]
    torch.testing.assert_close(runs[0].model.state_dict(), runs[1].model.state_dict(), rtol=0, atol=0)


def test_frozen_parameters_are_in_no_layer_and_never_move():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    model[0].requires_grad_(False)
    run = fs.simulate(R.fedlws(beta=5.0), model, unequal_clients(), rounds=2, training=TRAIN)
    assert run.layout.layers == ("2",)
    assert torch.equal(run.model.state_dict()["0.weight"], model.state_dict()["0.weight"])


def test_shrinking_leaves_buffers_alone():
    """FedLWS and FedAvg differ in the parameters after one round, not in the running statistics."""
    avg, lws = (fs.simulate(r, bn_cnn(), image_clients(), rounds=1, training=TRAIN).model.state_dict()
                for r in (R.fedavg(), R.fedlws(beta=10.0)))  # fmt: skip
    for name in avg:
        assert torch.equal(avg[name], lws[name]) == ("running" in name or "num_batches" in name), name


def test_float_buffers_take_a_method_s_weights_and_counters_the_share():
    """Equal weights on clients of 11, 2, 7 and 16 examples: statistics are means of four, counters are not."""
    sized, equal = (fs.simulate(R.fedavg(w), bn_cnn(), image_clients(), rounds=1, training=TRAIN).model.state_dict()
                    for w in ("samples", "uniform"))  # fmt: skip
    assert not torch.allclose(sized["1.running_mean"], equal["1.running_mean"])
    assert torch.equal(sized["1.num_batches_tracked"], equal["1.num_batches_tracked"])
    layered = fs.simulate(R.fedlayerwise(), bn_cnn(), image_clients(), rounds=1, training=TRAIN).model.state_dict()
    assert torch.equal(sized["1.running_mean"], layered["1.running_mean"])  # a weight a layer: p_k


def test_the_global_policy_keeps_the_servers_buffers():
    run = fs.simulate(R.fedavg(), bn_cnn(), image_clients(), rounds=1, training=TRAIN, buffers="global")
    assert torch.equal(run.model.state_dict()["1.running_mean"], torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("name", ["fedavg", "moon", "fedbs"])
def test_the_local_policy_keeps_every_clients_buffers_at_home(name):
    """They stay out of the average, and a client's next turn starts from its own: the run is neither of the others."""
    settings = {"rounds": 3, "training": TRAIN}
    local, world = (fs.simulate(R.METHODS[name](), bn_cnn(), image_clients(), buffers=p, **settings).model.state_dict()
                    for p in ("local", "global"))  # fmt: skip
    apart = fs.simulate(R.METHODS[name](), bn_cnn(), image_clients(), buffers="local", engine="apart", **settings)
    assert torch.equal(local["1.running_mean"], torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(local, apart.model.state_dict(), rtol=0, atol=1e-11)
    if name != "fedavg":  # FedAvg trains with the batch's own statistics; these two look at the running ones
        assert (local["0.weight"] - world["0.weight"]).abs().max() > 1e-9


def test_dropout_is_reproducible_and_different_for_each_client():
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    runs = [fs.simulate(R.fedavg(), model, unequal_clients(), rounds=2, training=TRAIN, seed=s) for s in (0, 0, 1)]
    states = [r.model.state_dict()["0.weight"] for r in runs]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])
    calm = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.0), nn.Linear(8, 3)).double()
    calm.load_state_dict(model.state_dict())
    without = fs.simulate(R.fedavg(), calm, unequal_clients(), rounds=2, training=TRAIN).model.state_dict()["0.weight"]
    assert not torch.equal(states[0], without)


@pytest.mark.parametrize("layer", [nn.Dropout(0.3), nn.Dropout2d(0.5)])
def test_dropout_is_the_same_in_chunks_and_apart(layer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), layer, nn.Flatten(), nn.Linear(16, 3), nn.Dropout(0.2)).double()
    ways: list[dict[str, Any]] = [{"chunk": 1}, {"chunk": 3}, {}, {"engine": "apart"}]
    runs = [fs.simulate(R.moon(), model, image_clients(), rounds=2, training=TRAIN, **w).model for w in ways]
    for run in runs[1:]:
        torch.testing.assert_close(run.state_dict(), runs[0].state_dict(), rtol=0, atol=1e-11)


def test_dropout_keeps_its_share_and_its_mean():
    layer = nn.Dropout(0.3).train()
    assert heed_noise(layer)
    with client_noise(torch.tensor(12345)):
        one, two = layer(torch.ones(400, 500)), layer(torch.ones(400, 500))
    assert abs(float((one == 0).double().mean()) - 0.3) < 0.005
    assert abs(float(one.mean()) - 1) < 0.01
    both = float(((one == 0) & (two == 0)).double().mean())
    assert abs(both - 0.09) < 0.005  # two calls are independent
    rows = (one == 0).double()
    assert float(torch.corrcoef(rows[:20]).triu(1).abs().max()) < 0.2  # and so are the examples


def test_a_model_that_vmap_cannot_stack_trains_apart():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.rnn(x.view(-1, 3, 2))[0][:, -1])

    run = fs.simulate(R.scaffold(), Recurrent(), unequal_clients(), rounds=1, training=TRAIN, engine="apart")
    assert run.final["train"]["loss"] > 0


def test_the_model_that_was_given_is_left_as_it_was():
    model = bn_cnn()
    fs.simulate(R.moon(), model, image_clients(), rounds=1, training=TRAIN)
    for name, value in bn_cnn().state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_a_regression_works_as_well():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 0.5])
    clients = [(x[:25], y[:25]), (x[25:], y[25:])]
    torch.manual_seed(0)
    settings = {"loss": "squared_error", "training": fs.SGD(lr=0.1, batch=5), "test": (x, y)}
    run = fs.simulate(R.fedlws(beta=0.001), nn.Linear(3, 1), clients, rounds=60, **settings)
    assert run.final["test"]["loss"] < 0.01
    assert set(run.final["clients"]) == {"mean", "worst10", "std"}
    assert run.final["clients"]["worst10"] >= run.final["clients"]["mean"]  # of a loss, the worst is the largest


def test_a_metric_of_ones_own_is_reported_and_the_spread_is_of_the_loss():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    clients = [(x[:9], x[:9, 0]), (x[9:], x[9:, 1])]
    metrics = {"mae": lambda o, y: (o[:, 0] - y).abs()}
    run = fs.simulate("fedavg", nn.Linear(3, 1), clients, rounds=1, loss="squared_error", metrics=metrics)
    assert set(run.final["train"]) == {"loss", "mae"}
    assert run.final["clients"]["worst10"] >= run.final["clients"]["mean"]


def test_a_loss_that_averages_gives_the_same_as_one_that_does_not():
    model, losses = nn.Linear(6, 3).double(), ("cross_entropy", nn.CrossEntropyLoss())
    runs = [fs.simulate(R.fedavg(), model, unequal_clients(), rounds=2, loss=f, training=TRAIN) for f in losses]
    torch.testing.assert_close(runs[0].model.state_dict(), runs[1].model.state_dict(), rtol=0, atol=1e-12)


class Scaling(nn.Module):
    """Prepares its examples within the forward pass, in place or not."""

    def __init__(self, in_place: bool):
        super().__init__()
        self.layer, self.in_place = nn.Linear(6, 3, dtype=torch.float64), in_place

    def forward(self, x):
        return self.layer(x.sub_(0.5).mul_(2) if self.in_place else (x - 0.5) * 2)


@pytest.mark.parametrize("engine", ["stacked", "pool", "apart"])
def test_a_forward_that_changes_the_examples_themselves_is_refused(engine):
    """Or every evaluation would be of other data than the one before, and so would the next run's."""
    clients, x = unequal_clients(), torch.randn(9, 6, dtype=torch.float64)
    kept = clients.x.clone(), x.clone()
    for model in (Scaling(True), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3, dtype=torch.float64))):
        with pytest.raises(fs.FedstrataError, match="changes its examples in place"):
            fs.simulate("fedavg", model, clients, rounds=1, engine=engine, test=(x, [0] * 9))
    fs.simulate("fedavg", Scaling(False), clients, rounds=1, engine=engine, test=(x, [0] * 9))
    assert torch.equal(clients.x, kept[0])
    assert torch.equal(x, kept[1])


class Centred(nn.Module):
    """Remembers the mean of its examples in training: in place, or as a new tensor each time."""

    def __init__(self, new: bool):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.new = nn.Linear(6, 3, dtype=torch.float64), new
        self.register_buffer("mean", torch.zeros(6, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        mean, count = self.get_buffer("mean"), self.get_buffer("count")
        if self.training and self.new:
            self.mean, self.count = 0.9 * mean + 0.1 * x.mean(0), count + 1
        elif self.training:
            mean.mul_(0.9).add_(0.1 * x.mean(0))
            count.add_(1)
        return self.layer(x - self.get_buffer("mean"))


@pytest.mark.parametrize("engine", ["stacked", "pool", "apart"])
def test_buffers_that_a_forward_replaces_are_those_that_it_changes_in_place(engine):
    clients, settings = unequal_clients(), {"rounds": 2, "training": TRAIN, "engine": engine}
    new, old = (fs.simulate("fedavg", Centred(n), clients, **settings).model.state_dict() for n in (True, False))
    assert int(new["count"]) > 0
    assert float(new["mean"].abs().min()) > 0
    for name, value in old.items():
        torch.testing.assert_close(new[name], value, rtol=0, atol=1e-12)


class Growing(nn.Module):
    """Keeps a mask of the size of its batch, which is no part of its state unless it is persistent."""

    def __init__(self, persistent: bool):
        super().__init__()
        self.layer = nn.Linear(6, 3, dtype=torch.float64)
        self.register_buffer("mask", torch.ones(1), persistent=persistent)

    def forward(self, x):
        self.mask = torch.ones(len(x), 1, dtype=x.dtype)
        return self.layer(x) * self.mask


@pytest.mark.parametrize("engine", ["stacked", "apart"])
def test_a_buffer_that_changes_its_shape_is_a_cache_or_refused(engine):
    clients, settings = unequal_clients(), {"rounds": 1, "training": TRAIN, "engine": engine}
    assert fs.simulate("fedavg", Growing(False), clients, **settings).model.get_buffer("mask").shape == (1,)
    with pytest.raises(fs.FedstrataError, match=r"puts a tensor of shape .* its buffer 'mask' of shape \(1,\), which"):
        fs.simulate("fedavg", Growing(True), clients, **settings)
