"""What is refused before anything is trained: losses and metrics that do something else than what is meant."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata.trial import SOME, various
from tests.federations import mlp


def by_class(classes: int = 3, each: int = 70) -> list[tuple[Tensor, Tensor]]:
    """Clients of one class each, the first of which fills a trial alone."""
    draw = torch.Generator().manual_seed(0)
    sets = [torch.randn(each, 6, generator=draw, dtype=torch.float64) + c for c in range(classes)]
    return [(x, torch.full((each,), c)) for c, x in enumerate(sets)]


def numbers() -> list[tuple[Tensor, Tensor]]:
    return [(x, x[:, 0]) for x, _ in by_class(2, 9)]


def run(model: nn.Module, clients: Any, recipe: Any = "fedavg", **how: Any) -> fs.Run:
    return fs.simulate(recipe, model, clients, rounds=1, training=fs.SGD(lr=0.01, batch=5), **how)


BROADCAST = {
    "elementwise": nn.MSELoss(reduction="none"),
    "by hand": lambda o, y: (o - y) ** 2,
    "reduced": lambda o, y: (o - y).square().mean(1),
    "of one output": lambda o, y: (o[:, :1] - y) ** 2,
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("how", BROADCAST)
def test_a_loss_or_metric_that_compares_with_other_peoples_targets_is_refused(how: str):
    model = mlp(classes=2 if how == "of one output" else 1)
    sentence = r"targets, for outputs of shape \(18, [12]\) and targets of shape \(18,\); compare each"
    with pytest.raises(fs.FedstrataError, match=f"the loss of one example changes with other examples' {sentence}"):
        run(model, numbers(), loss=BROADCAST[how])
    metrics = {"gap": lambda o, y: BROADCAST[how](o, y).reshape(len(y), -1).mean(1)}
    with pytest.raises(fs.FedstrataError, match=f"the metric 'gap' of one example .* {sentence}"):
        run(model, numbers(), loss=lambda o, y: (o[:, 0] - y) ** 2, metrics=metrics)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_the_mean_of_what_was_compared_so_is_refused_with_the_same_cure():
    with pytest.raises(fs.FedstrataError, match=r"shape \(18, 1\) and .* \(18,\); take it of outputs.reshape"):
        run(mlp(classes=1), numbers(), loss=nn.MSELoss())


def test_losses_and_metrics_of_the_same_shape_are_taken():
    one = run(mlp(classes=1), [(x, y[:, None]) for x, y in numbers()], loss=nn.MSELoss(reduction="none"))
    other = run(
        mlp(classes=1), numbers(), loss=lambda o, y: (o[:, 0] - y) ** 2, metrics={"gap": lambda o, y: o[:, 0] - y}
    )
    assert one.final["train"]["loss"] == other.final["train"]["loss"]


def test_weights_of_classes_are_not_overlooked_where_a_client_has_one_class():
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64))
    with pytest.raises(fs.FedstrataError, match=r"not the mean of the examples' losses, .*; give one with reduction"):
        run(mlp(), by_class(), loss=loss)


def test_a_model_is_tried_on_every_label_and_all_over_the_data():
    y = torch.zeros(5000, dtype=torch.long)
    y[3001], y[4990:] = 1, 2
    rows = various(y)
    assert len(rows) == SOME
    assert set(y[rows].tolist()) == {0, 1, 2}
    assert rows.sort().values.diff().max() < 120
    assert set(various(torch.arange(3)).tolist()) == {0, 1, 2}
    assert various(torch.arange(9) * 10**12).tolist() == list(range(9))  # counts, that no table could hold
    assert len(various(torch.arange(1000))) == SOME


def whole_numbers(*shape: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [(x, torch.randint(0, 2, (len(x), *shape), generator=draw)) for x, _ in by_class(2, 9)]


def either(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none")


def counts(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.poisson_nll_loss(outputs[:, 0], y, reduction="none")


MODELS = {(4,): (4, either), (): (1, counts)}
"""The model's outputs and the loss for targets of each shape."""


@pytest.mark.parametrize("shape", MODELS)
def test_whole_numbers_that_are_no_classes_have_no_accuracy_and_no_labels(shape: tuple[int, ...]):
    outputs, loss = MODELS[shape]
    clients = whole_numbers(*shape)
    assert run(mlp(classes=outputs), clients, loss=loss).final["train"].keys() == {"loss"}
    for recipe, what in (("feddisco", "Disco needs class labels"), ("fairfed", "FairFed needs an accuracy")):
        with pytest.raises(fs.FedstrataError, match=f"{what}: give"):
            run(mlp(classes=outputs), clients, recipe, loss=loss)


def test_classes_under_a_loss_of_ones_own_have_both():
    found = run(mlp(), whole_numbers(), "fedetf", loss=nn.CrossEntropyLoss()).final
    assert found["train"].keys() == {"loss", "accuracy"}


def test_only_classes_are_counted():
    with pytest.raises(fs.FedstrataError, match=r"one whole-number label an example; got torch.int64 .* \(18, 4\)"):
        fs.Clients.of(whole_numbers(4)).labels()


class Made(nn.Module):
    """Its layers are made in another order than they are called, and one may be called by nobody."""

    def __init__(self, *order: str):
        super().__init__()
        torch.manual_seed(0)
        for name in order:
            self.add_module(
                name, nn.Linear(6 if name == "body" else 5, 5 if name == "body" else 3, dtype=torch.float64)
            )
        self.last = "classifier" if "classifier" in order else "out"

    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule(self.last)(self.get_submodule("body")(x).tanh())


FEATURES = ["moon", "moon(head=4)", "fedproc", "fedetf", "ccvr", "fedbs(grad_scope='last_layer')"]


@pytest.mark.parametrize("recipe", FEATURES)
def test_a_classifier_that_is_not_what_is_called_last_is_refused(recipe: str):
    for order, wrong in ((("out", "body"), "calls 'out' after it"), (("body", "out", "aux"), "never calls it")):
        sentence = rf"the layer '{order[-1]}.*' is taken for .* its forward {wrong}; name the layer that classifies `cl"
        with pytest.raises(fs.FedstrataError, match=sentence):
            run(Made(*order), by_class(3, 9), recipe)
    assert run(Made("body", "out"), by_class(3, 9), recipe).final["train"]["loss"] > 0


@pytest.mark.parametrize("recipe", FEATURES)
def test_a_layer_called_classifier_may_stand_anywhere(recipe: str):
    one, other = (run(Made(*order), by_class(3, 9), recipe, seed=1) for order in
                  (("body", "classifier"), ("classifier", "body", "aux")))  # fmt: skip
    assert one.final["train"]["loss"] > 0
    assert other.final["train"]["loss"] > 0


class Gives(nn.Module):
    """A linear model whose answers come as something else."""

    def __init__(self, how: Any):
        super().__init__()
        self.layer, self.how = nn.Linear(6, 3, dtype=torch.float64), how

    def forward(self, x: Tensor) -> Any:
        return self.how(self.layer(x))


def missing(_: Tensor) -> Tensor:
    raise KeyError("mask")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (lambda o: (o, None), "must put out one tensor, and its forward gives tuple; wrap it in a module"),
        (lambda o: {"logits": o}, "must put out one tensor, and its forward gives dict"),
        (lambda o: None, "must put out one tensor, and its forward gives NoneType"),
        (lambda o: o.sum(), r"for each example, \[examples, ...\]; it gives outputs of shape \(\) for 64 examples"),
        (lambda o: o[:1], r"it gives outputs of shape \(1, 3\) for 64 examples"),
        (lambda o: o[:, 0], r"cross_entropy needs an output for each class, .* the model gives \(64,\)"),
        (missing, r"does not take examples of shape \(6,\): KeyError: 'mask'"),
    ],
)
def test_answers_that_are_no_tensor_of_all_examples_are_a_sentence(how: Any, sentence: str):
    with pytest.raises(fs.FedstrataError, match=sentence):
        run(Gives(how), by_class())


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: "mlp", "the model must be a torch.nn.Module; got str"),
        (lambda: nn.LazyLinear(3), "'weight' has no shape yet; call the model once, on an example"),
        (lambda: torch.jit.script(nn.Linear(6, 3)), "the model is a compiled script"),
        (lambda: once(nn.utils.weight_norm(nn.Linear(6, 3))), "the model cannot be copied .* has a successor"),
    ],
)
def test_models_that_cannot_be_worked_with_are_a_sentence(make: Any, sentence: str):
    with pytest.raises(fs.FedstrataError, match=sentence):
        run(make(), by_class())


def once(model: nn.Module) -> nn.Module:
    """After a pass, whose results it keeps."""
    model(torch.zeros(1, 6))
    return model


@pytest.mark.parametrize(
    ("loss", "metrics", "sentence"),
    [
        (lambda o, y: 0.5, None, "the loss must give a tensor, one number an example; it gives 0.5"),
        (lambda o, y: None, None, "the loss must give a tensor, one number an example; it gives None"),
        ("cross_entropy", {"mine": lambda o, y: [1.0]}, r"the metric 'mine' must give a tensor, .* it gives \[1.0\]"),
        ("cross_entropy", {"loss": lambda o, y: o[:, 0]}, "a metric cannot be called 'loss'"),
    ],
)
def test_losses_and_metrics_that_give_no_tensor_are_a_sentence(loss: Any, metrics: Any, sentence: str):
    with pytest.raises(fs.FedstrataError, match=sentence):
        run(mlp(), by_class(), loss=loss, metrics=metrics)


def test_a_word_that_no_table_has_is_found_before_anything_is_trained():
    words = torch.zeros(200, 4, dtype=torch.long)
    words[150, 2] = 50
    model = nn.Sequential(nn.Embedding(10, 5), nn.Flatten(), nn.Linear(20, 2))
    with pytest.raises(
        fs.FedstrataError, match=r"does not take examples of shape \(4,\) in torch.int64: .*index out of"
    ):
        run(model, [(words[:100], torch.arange(100) % 2), (words[100:], torch.arange(100) % 2)])


def test_training_of_another_kind_is_a_sentence_and_clients_may_come_one_by_one():
    for wrong in ("SGD", torch.optim.SGD):
        with pytest.raises(fs.FedstrataError, match="training must be"):
            fs.simulate("fedavg", mlp(), by_class(), rounds=1, training=wrong)  # pyright: ignore[reportArgumentType]
    given = fs.simulate("fedavg", mlp(), iter(by_class()), rounds=1)  # pyright: ignore[reportArgumentType]
    assert given.final["train"] == fs.simulate("fedavg", mlp(), by_class(), rounds=1).final["train"]
