from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from math import ceil
from pathlib import Path
from threading import Barrier, get_ident
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor, nn

import fedstrata as fs
from fedstrata import evaluate
from fedstrata.clients import Rows
from fedstrata.evaluate import client_scores, fairness, score, summary
from fedstrata.layout import Arrays
from fedstrata.record import read_rounds
from fedstrata.report.tables import runs_table
from fedstrata.task import Loss, Task, buffers_of
from fedstrata.threads import threads
from tests.federations import mlp
from tests.patience import PATIENCE


def problem(loss: str | Loss = "cross_entropy") -> tuple[Task, Tensor, Arrays, Tensor, Tensor]:
    """A small model with batch normalisation, its parameters and buffers, and 25 examples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    for b in model.buffers():
        if b.is_floating_point():
            b.uniform_(0.5, 2.0)
    task = Task.of(model, loss)
    w = task.layout.flatten(dict(model.named_parameters()))
    x = torch.randn(25, 4, dtype=torch.float64)
    return task, w, buffers_of(model), x, torch.arange(25) % 3


def outputs(task: Task, w: Tensor, buffers: Arrays, x: Tensor) -> np.ndarray:
    """Of the same model, by numpy."""
    p = {n: v.numpy() for n, v in (task.layout.unflatten(w) | buffers).items()}
    normed = (x.numpy() - p["0.running_mean"]) / np.sqrt(p["0.running_var"] + 1e-5)
    return (normed * p["0.weight"] + p["0.bias"]) @ p["1.weight"].T + p["1.bias"]


def test_scores_are_the_loss_and_accuracy_of_each_example():
    task, w, buffers, x, y = problem()
    scores = score(task, w, buffers, x, y)
    z = outputs(task, w, buffers, x)
    losses = np.log(np.exp(z).sum(1)) - z[np.arange(25), y.numpy()]
    assert scores.keys() == {"loss", "accuracy"}
    np.testing.assert_allclose(scores["loss"], losses, rtol=1e-12)
    np.testing.assert_array_equal(scores["accuracy"], z.argmax(1) == y.numpy())
    assert 0 < float(scores["accuracy"].mean()) < 1


def test_squared_error_is_half_the_squared_distance():
    task, w, buffers, x, _ = problem("squared_error")
    y = torch.randn(25, 3, dtype=torch.float64)
    scores = score(task, w, buffers, x, y)
    expected = 0.5 * ((outputs(task, w, buffers, x) - y.numpy()) ** 2).sum(1)
    assert scores.keys() == {"loss"}
    np.testing.assert_allclose(scores["loss"], expected, rtol=1e-12)


def test_a_loss_that_averages_is_taken_example_by_example():
    _, w, buffers, x, y = problem()
    task, averaging = problem()[0], problem(nn.functional.cross_entropy)[0]
    expected = score(task, w, buffers, x, y)["loss"]
    torch.testing.assert_close(score(averaging, w, buffers, x, y)["loss"], expected)


@pytest.mark.parametrize("at_once", [1, 7, 25, 26])
def test_examples_are_scored_the_same_a_few_at_a_time(at_once: int, monkeypatch: pytest.MonkeyPatch):
    task, w, buffers, x, y = problem()
    whole = score(task, w, buffers, x, y)
    monkeypatch.setattr(evaluate, "EXAMPLES_AT_ONCE", at_once)
    parts = score(task, w, buffers, x, y)
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-12, atol=1e-12)


def test_scoring_changes_no_buffer_and_keeps_no_gradient():
    task, w, buffers, x, y = problem()
    before = {n: b.clone() for n, b in buffers.items()}
    scores = score(task, w.requires_grad_(), buffers, x, y)
    assert not scores["loss"].requires_grad
    for name, b in buffers.items():
        torch.testing.assert_close(b, before[name], rtol=0, atol=0)


def test_a_metric_of_ones_own_is_scored():
    task, w, buffers, x, y = problem()
    own = Task(task.layout, task.train_mode, task.eval_mode, {}, task.loss, {"largest": lambda o, y: o.amax(-1)})
    found = score(own, w, buffers, x, y)["largest"]
    np.testing.assert_allclose(found, outputs(task, w, buffers, x).max(1), rtol=1e-12)


def test_a_summary_is_the_mean_in_float64():
    found = summary({"loss": torch.tensor([1e8, 1.0, -1e8]), "accuracy": torch.tensor([0.0, 1.0])})
    assert found == {"loss": pytest.approx(1 / 3), "accuracy": 0.5}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_client_scores_are_means_over_ones_own_rows(sizes: list[int], seed: int):
    draw = np.random.default_rng(seed)
    values = draw.standard_normal(sum(sizes))
    rows = np.split(draw.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    found = client_scores({"loss": torch.from_numpy(values)}, Rows(rows))["loss"]
    assert found.shape == (len(sizes),)
    for mean, mine in zip(found, rows, strict=True):
        if len(mine):
            assert mean == pytest.approx(values[mine].mean())
        else:
            assert np.isnan(mean)


def test_every_score_is_told_by_client():
    scores = {"loss": torch.tensor([1.0, 2.0, 3.0]), "accuracy": torch.tensor([0.0, 1.0, 1.0])}
    found = client_scores(scores, Rows([np.array([2, 0]), np.array([1])]))
    assert {n: v.tolist() for n, v in found.items()} == {"loss": [2.0, 2.0], "accuracy": [0.5, 1.0]}


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=45), st.sampled_from(["high", "low"]))
@settings(max_examples=60, deadline=None)
def test_fairness_is_mean_worst_tenth_and_deviation(values: list[float], best: str):
    found = fairness(np.array(values), best)
    worst = sorted(values, reverse=best == "low")[: ceil(len(values) / 10)]
    assert found == {
        "mean": pytest.approx(np.mean(values), abs=1e-9),
        "worst10": pytest.approx(np.mean(worst), abs=1e-9),
        "std": pytest.approx(np.std(values), abs=1e-9),
    }


def test_the_worst_of_a_few_clients_is_the_worst_one():
    values = np.array([0.5, 0.9, 0.1])
    assert fairness(values, "high")["worst10"] == 0.1
    assert fairness(values, "low")["worst10"] == 0.9


@pytest.mark.parametrize("best", ["high", "low"])
def test_a_score_that_is_nan_is_told(best: str):
    assert all(np.isnan(v) for v in fairness(np.array([0.5, np.nan, 0.1]), best).values())


def test_clients_without_data_do_not_count_and_one_whose_loss_is_nan_does(tmp_path: Path):
    """As one that trained before its features were spoilt: to leave it out would be the best news of all."""
    clients = [(torch.randn(n, 6, dtype=torch.float64), torch.zeros(n)) for n in (3, 5, 0)]
    settings: dict[str, Any] = {"rounds": 1, "loss": lambda o, y: o.square().mean(1)}
    fine = fs.simulate("fedavg", mlp(), clients, **settings).final["clients"]
    assert all(np.isfinite(v) for v in fine.values())
    assert fine == fs.simulate("fedavg", mlp(), clients[:2], **settings).final["clients"]
    huge = torch.full((4, 6), 1e308, dtype=torch.float64), torch.zeros(4)
    run = fs.simulate("fedavg", Doubtful(), [huge, *clients], out=tmp_path / "run", **settings)
    assert all(np.isnan(v) for v in run.final["clients"].values())
    assert read_rounds(tmp_path / "run")[0]["clients"] == {"mean": None, "worst10": None, "std": None}
    console = Console(file=StringIO(), record=True)
    console.print(runs_table({"run": read_rounds(tmp_path / "run")[0]}))
    assert "nan" in console.export_text()
    fs.report([tmp_path / "run"], tmp_path / "page.html")


class Doubtful(nn.Module):
    """NaN on what is too large, and nothing else."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.clamp(-9, 9)) + (10 * x).sum(1, keepdim=True) - (10 * x).sum(1, keepdim=True)


def conv_problem() -> tuple[Task, Tensor, Arrays, Tensor, Tensor]:
    """As a person runs it: float32, convolutions, images laid out channels last."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 3))
    task = replace(Task.of(model), channels_last=True)
    w = task.layout.flatten(dict(model.named_parameters()))
    return task, w, buffers_of(model), torch.randn(25, 3, 8, 8), torch.arange(25) % 3


@pytest.mark.parametrize("make", [problem, conv_problem])
def test_several_threads_give_exactly_what_one_gives(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluate, "EXAMPLES_AT_ONCE", 4)
    given, found = make(), []
    for count in (1, 2, 3, 20):
        with threads(count):
            found.append(score(*given))
            assert torch.get_num_threads() == count
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(torch.equal(other[n], found[0][n]) for n in other)


def test_pieces_are_scored_by_several_threads_of_one_thread_each(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluate, "EXAMPLES_AT_ONCE", 5)
    task, w, buffers, x, y = problem()
    both, seen = Barrier(2, timeout=PATIENCE), dict[int, int]()

    def metric(outputs: Tensor, y: Tensor) -> Tensor:
        if get_ident() not in seen:
            seen[get_ident()] = torch.get_num_threads()
            both.wait()  # which breaks unless two are at work at once
        return outputs[:, 0]

    with threads(2):
        score(replace(task, metrics={"first": metric}), w, buffers, x, y)
    assert list(seen.values()) == [1, 1]


def test_a_metric_that_fails_in_a_thread_is_told_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluate, "EXAMPLES_AT_ONCE", 5)
    task, w, buffers, x, y = problem()
    before = {n: p.clone() for n, p in task.eval_mode.named_parameters()}

    def metric(outputs: Tensor, y: Tensor) -> Tensor:
        raise ArithmeticError("not today")

    with threads(2):
        with pytest.raises(ArithmeticError, match="not today"):
            score(replace(task, metrics={"bad": metric}), w, buffers, x, y)
        assert torch.get_num_threads() == 2
    assert all(torch.equal(p, before[n]) for n, p in task.eval_mode.named_parameters())
