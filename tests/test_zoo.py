"""The models: their sizes as published, their names and options, and how they train."""

import hashlib
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedstrata as fs
from fedstrata.cli import main
from fedstrata.errors import DataError, FedstrataError, ModelError, SettingError
from fedstrata.models import MODELS, model
from fedstrata.models.base import norm_of
from fedstrata.models.densenet import densely
from fedstrata.models.resnet import residual
from fedstrata.models.vit import patches
from fedstrata.task import Task, buffers_of

SMALL: dict[str, tuple[int, ...]] = {
    "logreg": (6,), "mlp": (6,), "mlp200": (6,), "har_mlp": (6,), "textcnn": (9,), "har_cnn": (2, 36),
    "cnn": (3, 4, 4), "cnn_bn": (3, 4, 4), "simple_cnn": (3, 18, 18), "layerwise_cnn": (1, 16, 16),
    "moon_cnn": (3, 16, 16), "resnet20": (3, 8, 8), "resnet18": (3, 8, 8), "wrn56_4": (3, 8, 8),
    "densenet121": (3, 16, 16), "vit": (3, 8, 8),
}  # fmt: skip
"""Small examples that each model takes; with less, batch normalisation has two values a channel and explodes."""

BIG = {"resnet18", "wrn56_4", "densenet121", "vit"}
ALL = [pytest.param(n, marks=pytest.mark.slow) if n in BIG else n for n in MODELS]
TINY: dict[str, Any] = {
    "mlp200": lambda shape, classes: model("mlp200", shape, classes),
    "har_cnn": lambda shape, classes: model("har_cnn", shape, classes),
    "moon_cnn": lambda shape, classes: model("moon_cnn", shape, classes),
    "textcnn": lambda shape, classes: model("textcnn(dim=4, filters=3)", shape, classes, vocabulary=20),
    "vit": lambda shape, classes: model("vit(dim=8, depth=2, heads=2, mlp=6, dropout=0.3)", shape, classes),
    "resnet20": lambda shape, classes: residual(shape, classes, (4, 8), 2, norm_of("batch", 8), pool=True),
    "resnet18": lambda shape, classes: residual(shape, classes, (4, 8), 2, norm_of("group", 2), pool=True),
    "densenet121": lambda shape, classes: densely(shape, classes, (2, 3), 4, norm_of("batch", 8)),
}
"""One of each family, small enough for float64."""


def size(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def small(name: str, classes: int = 3, **options: Any) -> nn.Module:
    return model(name, SMALL[name], classes, vocabulary=20, **options)


def clients(name: str, *sizes: int) -> fs.Clients:
    draw = np.random.default_rng(0)
    xs = [draw.standard_normal((n, *SMALL[name])) for n in sizes]
    if name == "textcnn":
        xs = [draw.integers(0, 20, (n, *SMALL[name])) for n in sizes]
    return fs.Clients.of([(x, draw.integers(0, 3, len(x))) for x in xs])


@pytest.mark.parametrize(
    ("text", "shape", "classes", "count"),
    [
        ("layerwise_cnn", (1, 28, 28), 10, 582_026),  # FedLayerWise
        ("layerwise_cnn(init='keras')", (1, 28, 28), 10, 582_026),
        ("mlp200", (1, 28, 28), 10, 199_210),  # FedAvg's 2NN
        ("mlp200", (3, 32, 32), 10, 656_810),  # 3072-200-200-10, FedLWS
        ("simple_cnn", (3, 32, 32), 10, 122_570),  # TensorFlow's tutorial on CIFAR-10, where FedLAW has it from
        ("simple_cnn", (1, 28, 28), 10, 93_322),  # 64 * 3 * 3 numbers before the hidden layer
        ("moon_cnn", (3, 32, 32), 10, 92_626),  # the layers of MOON's code
        ("moon_cnn(head=False)", (3, 32, 32), 10, 62_006),  # PyTorch's tutorial on CIFAR-10
        ("har_mlp", (561,), 6, 80_582),
        ("har_cnn", (9, 128), 6, 2_253_958),  # 64 * 26 = 1664 numbers before the first hidden layer, PFLlib
        ("resnet20", (3, 32, 32), 10, 272_474),  # 0.27 M in He et al.'s Table 6; 269,722 without convolved shortcuts
        ("resnet20(norm='group')", (3, 32, 32), 10, 272_474),
        ("resnet18", (3, 32, 32), 10, 11_173_962),  # the usual ResNet-18 for CIFAR; torchvision's stem has 7,680 more
        ("resnet18", (3, 64, 64), 200, 11_271_432),
        ("wrn56_4", (3, 32, 32), 10, 13_628_234),
        ("densenet121", (3, 32, 32), 10, 6_956_298),  # the usual DenseNet-121 for CIFAR
        ("densenet121(stem='imagenet')", (3, 224, 224), 1000, 7_978_856),  # torchvision
        ("vit", (3, 32, 32), 10, 9_523_722),  # lucidrains' ViT with these settings, 9.52 M
        ("textcnn(vocabulary=20000)", (64,), 4, 20_000 * 128 + 100 * 128 * 12 + 300 + 4 * 301),
    ],
)
def test_models_have_as_many_parameters_as_published(text, shape, classes, count):
    assert size(model(text, shape, classes)) == count


def test_the_first_four_models_are_what_they_were():
    """Names, shapes and initial weights, which recorded results depend on."""
    shape = (1, 8, 8)
    known = {
        "logreg": "1.weight", "mlp": "1.weight 3.weight 5.weight", "cnn": "0.weight 3.weight 7.weight",
        "cnn_bn": "0.weight 1.weight 4.weight 5.weight 9.weight",
    }  # fmt: skip
    digest = hashlib.sha256()
    for name, weights in known.items():
        state = model(name, shape, 10, seed=3).state_dict()
        assert [n for n in state if n.endswith("weight")] == weights.split()
        for value in state.values():
            digest.update(value.numpy().tobytes())
    assert digest.hexdigest()[:16] == "50b35fcad124f847"


@pytest.mark.parametrize(
    ("method", "name"),
    [(m, n) for n in MODELS if n not in BIG for m in ("fedavg", "fedlws", "fedlayerwise")]
    + [pytest.param("fedlayerwise", n, marks=pytest.mark.slow) for n in sorted(BIG)],
)
def test_every_model_takes_a_federated_round(name, method):
    sizes = (2, 2) if name in BIG else (5, 3)
    before = small(name)
    run = fs.simulate(method, before, clients(name, *sizes), rounds=1, training=fs.SGD(lr=1e-4, batch=2))
    after = run.model.state_dict()
    assert run.rounds[0]["dropped"] == []
    assert np.isfinite(run.final["train"]["loss"])
    assert all(v.isfinite().all() for v in after.values())
    assert any(not torch.equal(v, after[n]) for n, v in before.state_dict().items())


@pytest.mark.parametrize("name", MODELS)
def test_features_are_what_the_classifier_sees(name):
    network = small(name)
    task = Task.of(network)
    x = clients(name, 2).to(torch.device("cpu"), torch.float32).x
    w, buffers = task.layout.flatten(dict(network.named_parameters())), buffers_of(network)
    features = task.features(w, buffers, x)
    head = network.get_submodule(str(task.classifier))
    assert isinstance(head, nn.Linear)
    assert features.shape == (2, head.in_features)
    assert task.classifier == "classifier" or name in ("logreg", "mlp", "cnn", "cnn_bn")
    torch.testing.assert_close(network.eval()(x), head(features))


@pytest.mark.parametrize("name", TINY)
def test_stacked_clients_train_as_those_apart(name):
    """With short batches, so that padding matters, and dropout where there is some."""
    torch.manual_seed(0)
    network = TINY[name](SMALL[name], 3).double()
    training, data = fs.SGD(lr=0.05, batch=3, momentum=0.5), clients(name, 7, 2, 4)
    ways: list[dict[str, Any]] = [{}, {"engine": "apart"}, {"seed": 1}]
    runs = [fs.simulate("fedlws + moon", network, data, rounds=2, training=training, **w).model for w in ways]
    torch.testing.assert_close(runs[1].state_dict(), runs[0].state_dict(), rtol=0, atol=1e-9)
    gap = runs[2].state_dict()["classifier.weight"] - runs[0].state_dict()["classifier.weight"]
    assert gap.abs().max() > 1e-6  # another seed, other batches


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "wrn56_4", "densenet121"])
def test_group_normalisation_leaves_no_buffers(name):
    batch, group = small(name), small(name, norm="group", groups=4)
    assert list(batch.buffers())
    assert not list(group.buffers())
    assert {m.num_groups for m in group.modules() if isinstance(m, nn.GroupNorm)} == {4}


def test_groups_are_as_many_as_the_channels_allow():
    norm = norm_of("group", 8)
    assert [(m.num_groups, m.num_channels) for m in map(norm, (16, 12, 3))] == [(8, 16), (4, 12), (1, 3)]  # pyright: ignore


def test_keras_initial_weights_are_glorots():
    first, keras = (model(f"layerwise_cnn(init={i!r})", (1, 28, 28), 10) for i in ("torch", "keras"))
    for name, p in keras.state_dict().items():
        if name.endswith("bias"):
            assert (p == 0).all()
            continue
        fan_in, fan_out = p[0].numel(), len(p) * p[0, 0].numel()
        limit = (6 / (fan_in + fan_out)) ** 0.5
        assert 0.98 * limit < float(p.abs().max()) <= limit
        assert not torch.equal(p, first.state_dict()[name])


def test_patches_are_cut_row_by_row():
    x = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6)
    cut = patches(x, 2)
    assert cut.shape == (2, 6, 12)
    assert torch.equal(cut[1, 4].view(3, 2, 2), x[1, :, 2:4, 2:4])


def test_a_text_and_keywords_give_options():
    with_text = model("moon_cnn(head=False)", (1, 28, 28), 10, seed=2).state_dict()
    by_keyword = model("moon_cnn", (1, 28, 28), 10, seed=2, head=False).state_dict()
    assert all(torch.equal(v, by_keyword[n]) for n, v in with_text.items())
    assert size(model("moon_cnn()", (1, 28, 28), 10)) > size(model("moon_cnn(head=True)", (1, 28, 28), 10, head=False))


def test_initial_weights_come_from_the_seed_alone():
    torch.manual_seed(5)
    one, two, other = (small("vit", seed=s, depth=1).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(v, two[n]) for n, v in one.items())
    assert not torch.equal(one["embed.weight"], other["embed.weight"])


def test_the_vocabulary_goes_only_to_models_that_take_it():
    assert small("textcnn").get_parameter("features.0.weight").shape == (20, 128)
    assert model("textcnn(vocabulary=7)", (9,), 3, vocabulary=20).get_parameter("features.0.weight").shape[0] == 7
    assert size(model("mlp", (9,), 3, vocabulary=20)) == size(model("mlp", (9,), 3))


@pytest.mark.parametrize(
    ("text", "shape", "sentence"),
    [
        ("resnet21", (3, 8, 8), "no model is called 'resnet21' (your own is written package.module:make); did you"),
        ("resnet20(nrm='group')", (3, 8, 8), "resnet20 has no setting 'nrm'; did you mean 'norm'?"),
        ("mlp(width=3)", (3, 8, 8), "mlp has no setting 'width'; it has no settings"),
        ("mlp(vocabulary=3)", (3, 8, 8), "mlp has no setting 'vocabulary'"),
        ("resnet20(norm='layer')", (3, 8, 8), "resnet20.norm must be one of 'batch', 'group'; got 'layer'"),
        ("resnet20(norm=group)", (3, 8, 8), "'group' in 'resnet20(norm=group)' is neither a number nor a text"),
        ("resnet20('group')", (3, 8, 8), "need their names, e.g. resnet20(norm='group')"),
        ("resnet20(groups=0)", (3, 8, 8), "groups must be at least 1; got 0"),
        ("resnet20 + mlp", (3, 8, 8), "'resnet20 + mlp' is not a model; write e.g. mlp, resnet20(norm='group')"),
        ("vit(heads=3)", (3, 8, 8), "vit.dim must be a multiple of heads; got dim = 512 and heads = 3"),
        ("vit(dropout=1.5)", (3, 8, 8), "vit.dropout must be in [0, 1)"),
        ("vit(depth=0)", (3, 8, 8), "vit.depth must be at least 1"),
        ("vit", (3, 8, 9), "patches of 4 x 4 pixels tile; the examples have (3, 8, 9)"),
        ("cnn", (64,), "needs images (channels, height, width); the examples have shape (64,)"),
        ("resnet20", (64,), "needs images (channels, height, width)"),
        ("cnn", (1, 3, 9), "needs images of at least 4 x 4 pixels; the examples have shape (1, 3, 9)"),
        ("densenet121", (3, 7, 9), "needs images of at least 8 x 8 pixels"),
        ("densenet121(stem='imagenet')", (3, 28, 28), "needs images of at least 29 x 29 pixels"),
        ("simple_cnn", (3, 17, 40), "examples of shape (3, 17, 40) are too small for this model"),
        ("layerwise_cnn", (1, 8, 8), "examples of shape (1, 8, 8) are too small for this model"),
        ("har_cnn", (561,), "needs signals (channels, length); the examples have shape (561,)"),
        ("har_cnn", (9, 20), "examples of shape (9, 20) are too small for this model"),
        ("textcnn", (9,), "textcnn needs the number of token ids"),
        ("textcnn(vocabulary=9)", (4,), "textcnn needs texts of 5 token ids or more"),
        ("textcnn(vocabulary=9)", (3, 8, 8), "the examples have shape (3, 8, 8)"),
        ("textcnn(vocabulary=0)", (9,), "textcnn.vocabulary must be at least 1"),
        ("textcnn(vocabulary=9, dropout=1)", (9,), "textcnn.dropout must be in [0, 1)"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_said_in_a_sentence(text, shape, sentence):
    with pytest.raises(FedstrataError) as error:
        model(text, shape, 10)
    assert sentence in str(error.value)


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_the_smallest_images_of_densenet_are_large_enough(stem):
    side = 8 if stem == "cifar" else 29
    network = densely((1, side, side), 3, (1, 1, 1, 1), 2, norm_of("batch", 8), stem)
    assert network.eval()(torch.zeros(1, 1, side, side)).shape == (1, 3)


OWN = """
import torch
from torch import nn
from fedstrata.models.base import image

def make(shape, classes, width=4):
    return nn.Sequential(nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, classes))

def open_to_all(shape, classes, **options):
    return make(shape, classes, **options)

class Own(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(shape[0], classes)

def wrong(shape, classes): return "a network"
def fails(shape, classes): raise RuntimeError("no luck\\nat all")
def sees_images(shape, classes): return image(shape)
def takes_one(shape): return make(shape, 2)
constant = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of one's own, in a folder that Python looks into."""
    (tmp_path / "my_models.py").write_text(OWN)
    (tmp_path / "broken_models.py").write_text("import nothing_of_that_name")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("my_models", None)


def test_a_factory_of_ones_own_makes_the_model(own):
    assert size(model("my_models:make", (6,), 3)) == 6 * 4 + 4 + 4 * 3 + 3
    assert size(model("my_models:make(width=2)", (6,), 3)) == 6 * 2 + 2 + 2 * 3 + 3
    assert size(model("my_models:open_to_all", (6,), 3, width=2)) == size(model("my_models:make(width=2)", (6,), 3))
    assert size(model("my_models:Own", (6,), 3)) == 21
    one, two, other = (model("my_models:Own", (6,), 3, seed=s).get_parameter("weight") for s in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert size(model("fedstrata.models.resnet:resnet20(norm='group')", (3, 8, 8), 10)) == 272_474


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("my_modells:make", SettingError, "my_modells:make cannot be imported: ModuleNotFoundError"),
        ("broken_models:make", SettingError, "No module named 'nothing_of_that_name'"),
        (":make", SettingError, "cannot be imported"),
        ("my_models:mak", SettingError, "the module my_models has no function or class mak; did you mean 'make'?"),
        ("my_models:constant", SettingError, "has no function or class constant"),
        ("my_models:make(widht=2)", SettingError, "my_models:make has no setting 'widht'; did you mean 'width'?"),
        ("my_models:", SettingError, "is not a model"),
        ("my_models:wrong", ModelError, "my_models:wrong must be an nn.Module; its factory returned a str"),
        ("my_models:fails", ModelError, "cannot be made for examples of shape (6,): RuntimeError: no luck"),
        ("my_models:takes_one", ModelError, "cannot be made for examples of shape (6,): TypeError"),
        ("my_models:sees_images", DataError, "needs images"),
    ],
)
def test_a_factory_that_cannot_be_used_gets_a_sentence(own, text, kind, sentence):
    with pytest.raises(kind) as error:
        model(text, (6,), 3)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_finds_a_model_in_the_folder_it_is_called_from(tmp_path, monkeypatch, capsys):
    flat = OWN.replace("nn.Linear(shape[0], width)", "nn.Flatten(), nn.Linear(64, width)")
    (tmp_path / "models_here.py").write_text(flat)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    with pytest.raises(SystemExit) as stop:
        main(["run", "--model", "models_here:make(width=5)", "--clients", "3", "--rounds", "1", "--out", "r"])
    assert stop.value.code == 0
    sys.modules.pop("models_here")
    assert 'model = "models_here:make(width=5)"' in (tmp_path / "r/experiment.toml").read_text()


@pytest.mark.parametrize("name", ["simple_cnn", "layerwise_cnn", "moon_cnn", "har_cnn"])
def test_pooling_before_the_relu_changes_no_bit(name):
    """As papers have it the ReLU comes first; zeros, from which no gradient flows, are the only ties."""
    ours, theirs = small(name), small(name)
    layers, draw = theirs.get_submodule("features"), torch.Generator().manual_seed(0)
    assert isinstance(layers, nn.Sequential)
    for i in [i for i, m in enumerate(layers) if isinstance(m, (nn.MaxPool1d, nn.MaxPool2d))]:
        layers[i], layers[i + 1] = layers[i + 1], layers[i]
    assert str(ours) != str(theirs)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(5, *SMALL[name], generator=draw)
    gradients = [torch.autograd.grad(n(x).square().sum(), list(n.parameters())) for n in (ours, theirs)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
