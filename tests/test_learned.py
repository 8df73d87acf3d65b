"""FedLAW against its gradients written out, with Adam by hand, on a network with batch normalisation."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import fedstrata as fs
from fedstrata.data import held_out
from fedstrata.parts import Learned
from tests.slow import bn_mlp

SIZES, BATCH, LR = (10, 25, 40), 7, 0.05
Named = dict[str, Tensor]


def setting() -> tuple[nn.Module, list[Named], Tensor, Tensor]:
    """(the model, what three clients made of it, the server's examples)."""
    draw = torch.Generator().manual_seed(0)

    def noise(v: Tensor) -> Tensor:
        return torch.randn(v.shape, generator=draw, dtype=torch.float64)

    net = bn_mlp()
    clients = [{n: v + 0.6 * noise(v) if v.is_floating_point() else v + 3 + 2 * k
                for n, v in net.state_dict().items()} for k in range(3)]  # fmt: skip
    for c in clients:
        c["1.running_var"] = c["1.running_var"].abs()
    return net, clients, torch.randn(20, 6, generator=draw, dtype=torch.float64), torch.arange(20) % 3


def learned(part: Learned) -> fs.Outcome:
    net, clients, x, y = setting()
    replies = [fs.Reply(client=k, model=c, examples=SIZES[k]) for k, c in enumerate(clients)]
    return fs.server_step(fs.recipes.fedavg(weigh=part), net.state_dict(), replies, proxy=fs.Proxy.of(net, x, y))


class Slow:
    """x of K weights and x_0, down the gradients dL/dx = <G, dw/dx>, G the loss gradient at the combined weights."""

    def __init__(self, by: str):
        self.net, clients, self.x, self.y = setting()
        self.names = [n for n, _ in self.net.named_parameters()]
        self.w = torch.stack([self.flat(c) for c in clients])  # [K, P]
        p = np.array(SIZES) / sum(SIZES)
        self.by, self.at, self.x0 = by, np.log(p) if by == "exp" else np.full(3, 3**-0.5), float(by == "quad")

    def flat(self, named: Named) -> Tensor:
        return torch.cat([named[n].reshape(-1) for n in self.names])

    def mixture(self) -> tuple[float, np.ndarray]:
        """gamma and lambda."""
        if self.by == "exp":
            return np.exp(self.x0), np.exp(self.at) / np.exp(self.at).sum()
        return self.x0**2, self.at**2 / (self.at**2).sum()

    def combined(self) -> Tensor:
        gamma, share = self.mixture()
        return gamma * torch.from_numpy(share) @ self.w

    def gradients(self, x: Tensor, y: Tensor) -> tuple[np.ndarray, float]:
        w, pieces = self.combined().requires_grad_(), [p.numel() for p in self.net.parameters()]
        shaped = zip(self.names, w.split(pieces), self.net.parameters(), strict=True)
        outputs = functional_call(self.net.train(), {n: v.view(p.shape) for n, v, p in shaped}, (x,))
        (g,) = torch.autograd.grad(nn.functional.cross_entropy(outputs, y), w)
        along, (gamma, share) = (self.w @ g).numpy(), self.mixture()
        mean = float(share @ along)
        if self.by == "exp":
            return gamma * share * (along - mean), gamma * mean
        return gamma * 2 * self.at / (self.at**2).sum() * (along - mean), 2 * self.x0 * mean

    def fit(self, epochs: int, which: tuple[bool, bool]) -> list[np.ndarray]:
        """Adam on x, on x_0 or on both; the path of x."""
        m, v, t, path = np.zeros(4), np.zeros(4), 0, []
        for epoch in range(epochs):
            for rows in torch.arange(20).split(BATCH):
                by_x, by_x0 = self.gradients(self.x[rows], self.y[rows])
                g, t = np.append(by_x * which[0], by_x0 * which[1]), t + 1
                m, v = 0.5 * m + 0.5 * g, 0.999 * v + 0.001 * g**2
                step = LR * 0.5 ** (epoch // 20) * m / (1 - 0.5**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
                self.at, self.x0 = self.at - step[:3], self.x0 - step[3]
            path.append(self.at)
        return path


@pytest.mark.parametrize("by", ["exp", "quad"])
def test_fedlaw_descends_its_gradients_with_a_rate_that_halves(by):
    slow = Slow(by)
    slow.fit(23, (True, True))
    out = learned(Learned(epochs=23, lr=LR, batch=BATCH, by=by))
    gamma, share = slow.mixture()
    np.testing.assert_allclose(out.notes["weights"][:, 0].numpy(), gamma * share, rtol=1e-8)
    torch.testing.assert_close(slow.flat(out.model), slow.combined(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("epochs", [18, 8])
def test_swa_learns_lambda_first_averaged_from_the_sixth_epoch_and_then_gamma(epochs):
    slow = Slow("exp")
    path = slow.fit(epochs // 2, (True, False))
    slow.at = np.mean(path[5:], 0) if len(path) > 5 else path[-1]
    slow.fit(epochs // 2, (False, True))
    out = learned(Learned(epochs=epochs, lr=LR, batch=BATCH, swa=True))
    gamma, share = slow.mixture()
    np.testing.assert_allclose(out.notes["weights"][:, 0].numpy(), gamma * share, rtol=1e-8)


def test_running_statistics_are_lambdas_mean_brought_up_to_date_on_the_servers_data():
    out = learned(Learned(epochs=4, lr=LR, batch=BATCH))
    net, clients, x, _ = setting()
    weights = out.notes["weights"][:, 0]
    share, p = weights / weights.sum(), torch.tensor(SIZES) / sum(SIZES)
    state = dict(out.model)
    for n in ("1.running_mean", "1.running_var"):
        state[n] = share @ torch.stack([c[n] for c in clients])
    counter = "1.num_batches_tracked"
    state[counter] = (p.double() @ torch.stack([c[counter].double() for c in clients])).round().long()
    net.load_state_dict(state)
    for _ in range(4):
        for part in x.split(BATCH):
            net.train()(part)
    torch.testing.assert_close(out.model, net.state_dict(), rtol=0, atol=1e-12)
    assert out.model[counter] == 3 + round(float(p.double() @ torch.tensor([0.0, 2, 4]).double())) + 4 * 3


@pytest.mark.parametrize("swa", [False, True])
def test_without_epochs_it_is_fedavg_and_buffers_are_averaged(swa):
    net, clients, *_ = setting()
    replies = [fs.Reply(client=k, model=c, examples=SIZES[k]) for k, c in enumerate(clients)]
    plain = fs.server_step(fs.recipes.fedavg(), net.state_dict(), replies)
    torch.testing.assert_close(learned(Learned(epochs=0, swa=swa)).model, plain.model, rtol=0, atol=1e-12)


def test_data_held_out_has_as_many_of_each_class_or_a_long_tail():
    y = torch.arange(400) % 4
    x = torch.arange(400.0)[:, None]
    (_, even), (_, rest) = held_out((x, y), 42)
    assert torch.bincount(even).tolist() == [10] * 4
    assert torch.bincount(rest).tolist() == [90] * 4
    (some, tail), (others, _) = held_out((x, y), 200, tail=0.1)
    assert torch.bincount(tail).tolist() == [int(50 * 0.1 ** (c / 3)) for c in range(4)] == [50, 23, 10, 5]
    assert sorted(torch.cat([some, others]).flatten().tolist()) == x.flatten().tolist()
    assert (y[some.flatten().long()] == tail).all()


@pytest.mark.parametrize(("count", "tail"), [(200, 0.1), (200, 0.5), (60, 0.01), (30, 1.0)])
def test_the_tail_is_floored_class_by_class(count, tail):
    y = torch.arange(1000) % 10
    (_, kept), _ = held_out((y[:, None].float(), y), count, tail)
    wanted = [int(np.floor(round(count / 10 * tail ** (c / 9), 9))) for c in range(10)]
    assert torch.bincount(kept, minlength=10).tolist() == wanted
    assert wanted[-1] == int(count / 10 * tail + 1e-9)
