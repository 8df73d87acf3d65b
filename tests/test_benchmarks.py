"""The benchmarks give every rival the cohorts and batches that the library draws by itself."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedstrata as fs
from benchmarks.measure import cpu_seconds, memory_mb, tree, watch
from benchmarks.registry import CHECKS, CONTENDERS, PLANS, chosen
from benchmarks.summary import summary
from benchmarks.workloads import SHAPES, WORKLOADS, Workload
from fedstrata.clients import training_batches
from fedstrata.models import MODELS
from tests.patience import PATIENCE

SMALL = Workload(
    "small", "", "logreg", (784,), 9, 270, {"test": 20}, cohort_size=4, epochs=2, batch=8, lr=0.03, momentum=0.9,
    mu=0.01, ragged=(5, 60), classes_each=2, seed=3,
)  # fmt: skip


def training(work: Workload) -> fs.SGD:
    return fs.SGD(lr=work.lr, momentum=work.momentum, batch=work.batch, epochs=work.epochs)


def clients(work: Workload) -> fs.Clients:
    return fs.Clients.split(*work.train(), [work.rows(k) for k in range(work.clients)])


@pytest.mark.parametrize("work", [SMALL, SMALL.part(0.4)])
def test_batches_are_those_of_the_library(work):
    owned = clients(work).owned()
    for round in range(2):
        ids = work.cohort(round).tolist()
        drawn = training_batches(owned, ids, training(work), work.seed, round)
        for k, client in enumerate(ids):
            mine = work.batches(round, client)
            assert [len(b) for b in mine] == drawn.count[k][drawn.count[k] > 0].tolist()
            for s, rows in enumerate(mine):
                np.testing.assert_array_equal(rows, drawn.index[k, s, : len(rows)])


def test_batches_differ_with_the_seed():
    other = replace(SMALL, seed=4)
    assert not np.array_equal(SMALL.orders(0, 0)[0], rows := SMALL.rows(0))
    assert sorted(SMALL.orders(0, 0)[0]) == sorted(rows)
    assert SMALL.cohort(0).tolist() != other.cohort(0).tolist() or SMALL.cohort(1).tolist() != other.cohort(1).tolist()


def test_cohorts_and_the_model_are_those_of_a_simulation():
    """A loop in numpy over the workload's cohorts and batches ends where fedstrata does."""
    work, model = SMALL, MODELS["logreg"](SMALL.shape, 10)
    with torch.no_grad():
        for p, w in zip(model.parameters(), work.weights(), strict=True):
            p.copy_(torch.from_numpy(w))
    recipe = fs.recipes.fedprox(mu=work.mu, select=fs.parts.Sample(k=work.cohort_size))
    held = work.held_out()["test"]
    run = fs.simulate(
        recipe, model, clients(work), rounds=2, training=training(work), test=held, seed=work.seed, evaluate_every=2
    )
    assert [r["cohort"] for r in run.rounds] == [work.cohort(t).tolist() for t in range(2)]
    expected = in_numpy(work, rounds=2)
    for p, w in zip(run.model.parameters(), expected, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), w, atol=1e-6)


def in_numpy(work: Workload, rounds: int) -> list[np.ndarray]:
    """FedProx of logistic regression by its closed-form gradient."""
    x, y = work.train()
    weight, bias = (w.astype(np.float64) for w in work.weights())
    for t in range(rounds):
        ends = []
        for k in work.cohort(t):
            w, b, vw, vb = weight.copy(), bias.copy(), 0.0, 0.0
            for rows in work.batches(t, k):
                p = np.exp(x[rows] @ w.T + b)
                p = (p / p.sum(1, keepdims=True) - np.eye(10)[y[rows]]) / len(rows)
                vw = work.momentum * vw + p.T @ x[rows] + work.mu * (w - weight)
                vb = work.momentum * vb + p.sum(0) + work.mu * (b - bias)
                w, b = w - work.lr * vw, b - work.lr * vb
            ends.append((w, b))
        weight, bias = (np.tensordot(work.shares(t), np.stack(e), 1) for e in zip(*ends, strict=True))
    return [weight, bias]


@pytest.mark.parametrize("work", WORKLOADS.values(), ids=WORKLOADS.keys())
def test_workloads_are_as_described(work):
    model = MODELS[work.model](work.shape, 10)
    assert [tuple(p.shape) for p in model.parameters()] == SHAPES[work.model]
    assert work.sizes.sum() == work.examples
    assert work.name in PLANS
    assert work.name in CHECKS
    if work.ragged:
        low, high = work.ragged
        assert low <= work.sizes.min() < work.sizes.max() <= high


def test_a_part_begins_as_the_whole_does():
    whole, part = SMALL, SMALL.part(0.4)
    (x, y), (a, b) = whole.train(), part.train()
    for k in range(whole.clients):
        first = whole.rows(k)[: part.sizes[k]]
        np.testing.assert_array_equal(x[first], a[part.rows(k)])
        np.testing.assert_array_equal(y[first], b[part.rows(k)])
        assert len(np.unique(y[whole.rows(k)])) <= whole.classes_each
    with pytest.raises(ValueError, match="at most 1; got 2"):
        whole.part(2)


def test_contenders_are_chosen_by_the_beginning_of_their_names():
    assert [c.name for c in chosen("ours,fed", "A")] == [*(c for c in CONTENDERS if c.startswith("ours")), "fedjax"]
    assert "fedjax" not in [c.name for c in chosen("", "B")]
    with pytest.raises(SystemExit, match="no contender's name begins with 'theirs'"):
        chosen("theirs", "A")


def test_ratios_are_taken_within_a_repetition():
    """A machine that is ten times slower in the second repetition changes no ratio."""

    def line(name: str, repetition: int, seconds: float) -> dict:
        rounds = {"seconds": [seconds], "train_seconds": [seconds / 2], "evaluate_seconds": [seconds / 2]}
        cost = {"cpu_seconds": 1.0, "peak_mb": 1.0, "first_seconds": 1.0, "foreign": 0.0}
        return {"contender": name, "repetition": repetition} | rounds | cost

    runs = [line("ours-auto", 0, 1.0), line("naive", 0, 4.0), line("naive", 1, 40.0), line("ours-auto", 1, 10.0)]
    found = summary([*runs, {"contender": "pfl", "repetition": 0, "why_not": "no"}])
    assert found["naive"]["ours_over_it"] == {"median": 0.25, "low": 0.25, "high": 0.25}
    assert "pfl" not in found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_command_is_charged_for_its_children(tmp_path):
    work = (
        "import time\nx = bytearray(80_000_000)\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}]); print('done')"
    seen = watch([sys.executable, "-c", parent], {}, tmp_path, limit=PATIENCE)
    assert (seen.code, seen.out) == (0, "done\n")
    assert seen.cost["cpu_seconds_whole"] >= 0.6
    assert seen.cost["peak_mb"] > 80
    late = watch([sys.executable, "-c", "import time; time.sleep(3600)"], {}, tmp_path, limit=0.3)
    assert late.code is None
    assert late.cost["wall_seconds"] < PATIENCE
    assert cpu_seconds(tree(1)) >= 0
    assert memory_mb([]) == 0
