"""The golden numbers of the specification that belong to these methods; their digits are printed to 1e-9 or 1e-12."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedstrata as fs
from fedstrata.core import Cohort, Recipe, Round
from fedstrata.layout import Layout
from fedstrata.parts.weigh.nova import effective_steps

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
pytestmark = [
    pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"]),
    pytest.mark.usefixtures("arithmetic"),
]


def aggregate(recipe: Recipe, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """(model, notes, state) of one round of the golden case."""
    layout = Layout.of_tensors({n: torch.zeros(size, dtype=dtype) for n, size in GOLDEN["tensors"].items()})
    old, new = torch.tensor(GOLDEN["model"], dtype=dtype), torch.tensor(GOLDEN["clients"], dtype=dtype)
    stats = {"examples": torch.tensor(GOLDEN["examples"]), "labels": torch.tensor(GOLDEN["feddisco"]["labels"])}
    stats["steps"] = torch.tensor(GOLDEN["fednova"]["steps"])
    cohort = Cohort(layout, torch.arange(3), stats, old, population=3)
    round = Round(cohort, new - old)
    model, _, state = recipe.aggregate(recipe.init(layout, 3), round, {})
    return model, round.notes, state


def near(got: Tensor, want: list, dtype: torch.dtype, digits: float = 1e-9, float32: float = 1e-6) -> None:
    torch.testing.assert_close(
        got.double().squeeze(), torch.tensor(want, dtype=torch.float64).squeeze(),
        rtol=0, atol=digits if dtype == torch.float64 else float32,
    )  # fmt: skip


def test_fedavg(dtype):
    near(aggregate(fs.recipes.fedavg(), dtype)[0], GOLDEN["fedavg"], dtype)


def test_fedlws_by_layer(dtype):
    model, notes, _ = aggregate(fs.recipes.fedlws(beta=0.1), dtype)
    near(notes["tau"], GOLDEN["fedlws"]["tau"], dtype)
    near(notes["gamma"], GOLDEN["fedlws"]["gamma"], dtype)
    gamma = torch.tensor(GOLDEN["fedlws"]["gamma"], dtype=torch.float64).repeat_interleave(torch.tensor([4, 3]))
    near(model, (gamma * torch.tensor(GOLDEN["fedavg"], dtype=torch.float64)).tolist(), dtype)


def test_fedlws_by_model(dtype):
    _, notes, _ = aggregate(fs.recipes.fedlws(beta=0.1, mode="model"), dtype)
    near(notes["gamma"], GOLDEN["fedlws"]["gamma of the model"], dtype)


def test_fedadp(dtype):
    _, notes, _ = aggregate(fs.recipes.fedadp(), dtype)
    near(notes["angle"], GOLDEN["fedadp"]["angles"], dtype)
    near(notes["weights"], GOLDEN["fedadp"]["weights"], dtype)


def test_fedlayerwise(dtype):
    model, notes, _ = aggregate(fs.recipes.fedlayerwise(), dtype)
    near(notes["angle"], GOLDEN["fedlayerwise"]["angles"], dtype)
    near(notes["weights"], GOLDEN["fedlayerwise"]["weights"], dtype)
    near(model[:3], GOLDEN["fedlayerwise"]["a.weight"], dtype)


def test_l_dawa(dtype):
    model, notes, _ = aggregate(fs.recipes.ldawa(), dtype)
    near(notes["cosine"], GOLDEN["l-dawa"]["cosines"], dtype)
    near(model[4:6], GOLDEN["l-dawa"]["b.weight"], dtype)


def test_feddisco(dtype):
    _, notes, _ = aggregate(fs.recipes.feddisco(), dtype)
    near(notes["distance"], GOLDEN["feddisco"]["distances"], dtype)
    near(notes["weights"], GOLDEN["feddisco"]["weights"], dtype)


def test_awd(dtype):
    _, _, state = aggregate(fs.recipes.awd(strength=0.02), dtype)
    near(state["shrink.0"]["rate"], [GOLDEN["awd rate"]], dtype)


def test_fednova(dtype):
    model, _, _ = aggregate(fs.recipes.fednova(), dtype)
    near(model[:3], GOLDEN["fednova"]["a.weight"], dtype)


def test_the_length_of_local_work(dtype):
    ten = torch.tensor([10.0], dtype=torch.float64)
    near(effective_steps(ten, momentum=0.9), GOLDEN["fednova"]["ten steps with momentum 0.9"], dtype)
    near(effective_steps(ten, lr_mu=0.01), GOLDEN["fednova"]["ten steps with lr mu 0.01"], dtype)


def test_adaptive_mu(dtype):
    _, _, state = aggregate(fs.recipes.adaptive_fedprox(mu=0.01, alpha=0.5), dtype)
    near(state["local.0"]["mu"], GOLDEN["adaptive mu"], dtype)
