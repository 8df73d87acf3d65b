"""Whole models fold, those that cannot are told from those that can, and both train as each client would alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import fedstrata as fs
from fedstrata.fold import folds
from fedstrata.models import MODELS, model
from fedstrata.models.base import norm_of
from fedstrata.models.densenet import densely
from fedstrata.models.resnet import residual
from fedstrata.task import Task, buffers_of
from tests.federations import final_model, unequal_clients
from tests.folding import alone, clients_of, examples, folded, same

IMAGE = (3, 8, 8)
ZOO: dict[str, tuple[int, ...]] = {
    "logreg": IMAGE, "mlp": IMAGE, "cnn": IMAGE, "cnn_bn": IMAGE, "moon_cnn": (1, 16, 16), "har_cnn": (2, 32),
    "simple_cnn": (1, 18, 18), "resnet20": IMAGE, "resnet20(norm='group')": IMAGE,
}  # fmt: skip


def at_random(made: nn.Module) -> tuple[nn.Module, Task, Tensor, Any]:
    """In float64, with parameters of three clients that are near to what was drawn."""
    made = made.double()
    task = Task.of(made)
    named = {n: p for n, p in made.named_parameters() if p.requires_grad}
    noise, buffers = clients_of(task)
    return made, task, task.layout.flatten(named) + 0.05 * (noise - 0.5), buffers


def check(made: nn.Module, shape: tuple[int, ...], words: int | None = None, b: int = 3) -> None:
    made, task, w, buffers = at_random(made)
    x = examples(shape, words, b=b)
    outputs, gradients, after = folded(task, w, buffers, x)
    for i in range(len(w)):
        own = {n: v[i] for n, v in buffers.items()}
        mine = outputs[i], gradients[i], {n: v[i] for n, v in after.items()}
        same(mine, alone(made, task, w[i], own, x[i]), 1e-10)
    assert task.folds_well(w[0], {n: v[0] for n, v in buffers.items()}, x.flatten(0, 1), torch.zeros(len(x) * b).long())


@pytest.mark.parametrize("name", ZOO)
def test_the_models_of_the_zoo_fold(name: str):
    check(model(name, ZOO[name], 4, seed=1), ZOO[name])


def test_dense_and_residual_networks_and_texts_fold():
    check(densely(IMAGE, 4, (2, 1), 3, norm_of("batch", 8)), IMAGE)
    check(residual(IMAGE, 4, (4, 8), 1, norm_of("group", 2), pool=True), IMAGE)
    check(model("textcnn", (7,), 3, vocabulary=11, dim=4, filters=3, dropout=0.0), (7,), words=11)


def test_all_models_but_the_transformer_fold():
    """It has parameters of its own, a class token and positions."""
    shapes = {"har_cnn": (2, 32), "textcnn": (7,), "moon_cnn": (1, 16, 16), "simple_cnn": (1, 18, 18)}
    shapes |= {"layerwise_cnn": (1, 16, 16)}
    with torch.device("meta"):
        made = {n: m(shapes.get(n, IMAGE), 3, **({"vocabulary": 5} if n == "textcnn" else {}))
                for n, m in MODELS.items() if n not in shapes or n == "textcnn"}  # fmt: skip
    made |= {n: MODELS[n](s, 3) for n, s in shapes.items() if n != "textcnn"}
    assert made.keys() == MODELS.keys()
    assert {n for n, m in made.items() if not folds(m)} == {"vit"}


@pytest.mark.parametrize("way", ["stacked", "pool"])
def test_a_transformer_goes_by_vmap_and_gives_the_same(way: str):
    images = fs.Clients.of([(x, torch.arange(len(x)) % 3) for x in examples((1, 4, 4), k=3, b=5)])
    vit = model("vit(patch=2, dim=4, depth=1, heads=2, mlp=3)", (1, 4, 4), 3).double()
    one, other = (final_model(fs.recipes.fedavg(), model=vit, clients=images, engine=e) for e in (way, "apart"))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


class Custom(nn.Module):
    """Forwards of several kinds over the same layers."""

    def __init__(self, how: str):
        super().__init__()
        self.how, self.conv, self.norm = how, nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.head = nn.Linear(32 if how != "concatenation" else 64, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x))
        if self.how == "residual":
            h = (x + h).relu()
        elif self.how == "concatenation":
            h = torch.cat([x, h], 1)
        elif self.how == "twice":
            h = self.conv(self.conv(h).tanh())
        return self.head(h.view(x.size(0), -1))


@pytest.mark.parametrize("how", ["residual", "concatenation", "twice", "view"])
def test_a_forward_of_ones_own_folds(how: str):
    torch.manual_seed(0)
    check(Custom(how), (2, 4, 4))


class Tied(nn.Module):
    """Words in and words out by one table, and two layers that are one."""

    def __init__(self):
        super().__init__()
        self.words, self.one, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
        self.other, self.head.weight = self.one, self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.other(self.one(self.words(x)).relu()).mean(1))


def test_tied_weights_fold_and_are_trained_through_all_their_uses():
    torch.manual_seed(0)
    check(Tied(), (6,), words=5)


class Subclassed(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) ** 2


class WithParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def with_buffer() -> nn.Module:
    layer = nn.Linear(6, 3)
    layer.register_buffer("scale", torch.tensor(2.0))
    return layer


def old_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(nn.Linear(6, 3))


UNFOLDABLE: dict[str, Callable[[], nn.Module]] = {
    "a parameter of a module's own": WithParameter,
    "a subclass": lambda: Subclassed(6, 3),
    "a buffer": with_buffer,
    "a parametrization": lambda: parametrizations.weight_norm(nn.Linear(6, 3)),
    "a weight that a hook makes": old_weight_norm,
    "pruning": lambda: prune.random_unstructured(nn.Linear(6, 3), "weight", 0.3),
    "prelu": lambda: nn.Sequential(nn.Linear(6, 3), nn.PReLU()),
    "recurrence": lambda: nn.LSTM(6, 3),
    "attention": lambda: nn.MultiheadAttention(6, 2),
    "transposed convolution": lambda: nn.ConvTranspose1d(2, 3, 2),
    "circular padding": lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
    "embeddings of limited norm": lambda: nn.Embedding(5, 3, max_norm=1.0),
    "sparse embeddings": lambda: nn.Embedding(5, 3, sparse=True),
    "gradients by frequency": lambda: nn.Embedding(5, 3, scale_grad_by_freq=True),
    "batch norm of nothing": lambda: nn.BatchNorm1d(6, affine=False, track_running_stats=False),
    "frozen batch norm of nothing": lambda: nn.BatchNorm1d(6, track_running_stats=False).requires_grad_(False),
}


@pytest.mark.parametrize("name", UNFOLDABLE)
def test_what_cannot_fold_is_told(name: str):
    assert not folds(nn.Sequential(nn.Linear(6, 6), UNFOLDABLE[name]()))
    assert folds(nn.Sequential(nn.Linear(6, 6)))


ODD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int | None]] = {
    "circular padding": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 4), None),
    "reflected padding": (lambda: nn.Conv1d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 5), None),
    "gradients by frequency": (lambda: nn.Embedding(5, 3, scale_grad_by_freq=True), (4,), 5),
    "convolutions of one example": (lambda: OneByOne(), (2, 5), None),
}


class OneByOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.conv(e) for e in x])


@pytest.mark.parametrize("name", ODD)
def test_settings_that_cannot_fold_are_heeded_nevertheless(name: str):
    make, shape, words = ODD[name]
    torch.manual_seed(0)
    made = nn.Sequential(make(), nn.Flatten(), nn.Tanh()).double()
    task = Task.of(made)
    w = task.layout.flatten(dict(made.named_parameters())).requires_grad_()
    x = examples(shape, words)[0]
    seen = task.stacked(task.layout.unflatten(w[None]), {}, x[None]).outputs[0]
    (found,) = torch.autograd.grad(seen.pow(3).sum(), w)
    plain = made(x)
    wanted = torch.autograd.grad(plain.pow(3).sum(), list(made.parameters()))
    torch.testing.assert_close(seen, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, torch.cat([g.flatten() for g in wanted]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(task.forward(w, {}, x).outputs, plain, rtol=1e-12, atol=1e-12)


def test_a_table_that_is_rewritten_as_it_is_read_is_refused():
    with pytest.raises(fs.FedstrataError, match="leave max_norm out"):
        Task.of(nn.Sequential(nn.Embedding(5, 3, max_norm=0.5), nn.Flatten(), nn.Linear(12, 3)))


class Mixing(nn.Module):
    """Forwards that look at more than one example, at the size of the batch, or at parameters of other modules."""

    def __init__(self, how: str):
        super().__init__()
        torch.manual_seed(0)
        self.how, self.first, self.head = how, nn.Linear(6, 6), nn.Linear(6, 3)
        self.places = nn.Embedding(6, 6)
        if how.startswith("late"):
            nn.init.zeros_(self.head.weight)  # so that, at first, nothing shows
            nn.init.zeros_(self.places.weight)

    def forward(self, x: Tensor) -> Tensor:
        if "mean of inputs" in self.how:
            x = x - x.mean(0)
        elif self.how == "largest input":
            x = x / x.abs().max()
        h = self.first(x).tanh()
        if self.how == "mean":
            h = h - h.mean(0)
        elif self.how == "size":
            h = h / x.shape[0]
        elif self.how == "order":
            h = h * torch.arange(len(x), dtype=x.dtype)[:, None]
        elif self.how == "neighbours":
            h = h + h.roll(1, 0)
        elif "positions" in self.how:
            h = h + self.places(torch.arange(6)).mean(1)
        elif self.how == "windows":
            h = self.first(h.view(-1, 2).repeat(1, 3)).view(len(x), -1)[:, :6]
        elif self.how == "weights of another":
            h = nn.functional.linear(h, self.first.weight)
        elif self.how == "assertion":
            assert len(x) < 4
        return self.head(h)


MIXING = ["mean of inputs", "late mean of inputs", "largest input", "mean", "size", "order", "neighbours",
          "late positions", "positions", "windows", "weights of another", "assertion"]  # fmt: skip


def trial(made: nn.Module, count: int = 6) -> tuple[Tensor, Any, Tensor, Tensor]:
    """What `folds_well` takes."""
    task = Task.of(made)
    w = task.layout.flatten({n: p for n, p in made.named_parameters() if p.requires_grad})
    clients = unequal_clients()
    return w, buffers_of(made), clients.x[:count], clients.y[:count]


@pytest.mark.parametrize("how", MIXING)
def test_a_forward_that_mixes_clients_is_found_out(how: str):
    made = Mixing(how).double()
    task = Task.of(made)
    assert task.folds
    assert not task.folds_well(*trial(made))
    fine = Mixing("nothing").double()
    assert Task.of(fine).folds_well(*trial(fine))


class Smoothed(nn.Module):
    """Gives the layer within it another running mean."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.head = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            self.norm.running_mean = 0.5 * self.norm.get_buffer("running_mean") + h.detach().mean(0)
        return self.head(self.norm(h))


def test_a_forward_that_replaces_the_buffers_of_a_layer_is_found_out_too():
    made = Smoothed().double()
    assert Task.of(made).folds
    assert not Task.of(made).folds_well(*trial(made))
    clients, settings = unequal_clients((8, 8, 4, 8)), {"rounds": 2, "training": fs.SGD(lr=0.1, batch=4)}
    one, other = (fs.simulate("fedavg", made, clients, engine=e, **settings).model for e in ("stacked", "apart"))
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("how", [m for m in MIXING if m not in ("weights of another", "assertion")])
def test_and_trains_as_each_client_would_alone(how: str):
    one, other = (final_model(fs.recipes.fedavg(), model=Mixing(how).double(), engine=e,
                              clients=unequal_clients((8, 8, 4, 8)), training=fs.SGD(lr=0.1, batch=4))
                  for e in ("stacked", "apart"))  # fmt: skip
    torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


class Forgetful(nn.Module):
    """Dropout as a function, which draws from torch's generator."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.first(x).tanh(), 0.3, self.training))


@pytest.mark.parametrize("how", [m for m in MIXING if m not in ("weights of another", "assertion")] + ["dropout"])
def test_where_stacking_would_be_seen_in_short_batches_it_is_left_to_those_who_ask(how: str):
    made = Forgetful().double() if how == "dropout" else Mixing(how).double()
    common: dict[str, Any] = {"model": made, "clients": unequal_clients((8, 5, 4, 7)), "workers": 1}
    auto, apart, stacked = (
        final_model(fs.recipes.fedavg(), engine=e, training=fs.SGD(lr=0.1, batch=4), **common)
        for e in ("auto", "apart", "stacked")
    )
    torch.testing.assert_close(auto, apart, rtol=0, atol=1e-11)
    if how in ("mean", "mean of inputs", "size", "dropout"):  # others see nothing of padding that repeats
        assert (stacked - apart).abs().max() > 1e-4


def test_padding_is_well_where_examples_do_not_see_each_other():
    for made in (
        Mixing("nothing"),
        nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 3)),
    ):
        assert Task.of(made.double()).pads_well(*trial(made))


@pytest.mark.parametrize(
    ("layer", "draws"), [(nn.Dropout(0.5), False), (nn.RReLU(), True), (nn.TransformerEncoderLayer(6, 2, 4), True)]
)
def test_who_draws_from_torchs_generator_is_known(layer: nn.Module, draws: bool):
    made, before = nn.Sequential(layer, nn.Linear(6, 3)).double(), torch.get_rng_state()
    assert Task.of(made).draws(*trial(made)[:3]) == draws
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loss_that_mixes_examples_is_given_each_client_by_itself():
    def centred(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs - outputs.mean(0), y, reduction="none")

    settings = {"clients": unequal_clients((8, 8, 4, 8)), "training": fs.SGD(lr=0.1, batch=4), "loss": centred}
    one, other = (final_model(fs.recipes.fedavg(), engine=e, **settings) for e in ("stacked", "apart"))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_the_trial_leaves_torchs_generator_as_it_was():
    made = nn.Sequential(nn.Linear(6, 3), nn.RReLU()).double()  # which draws
    before = torch.get_rng_state()
    Task.of(made).folds_well(*trial(made))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_trial_needs_no_more_examples_than_there_are(count: int):
    made = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    assert Task.of(made).folds_well(*trial(made, count))
