"""Theorems: on heterogeneous quadratics the optimum is known, and so is who reaches it."""

import pytest
import torch

import fedstrata as fs
from fedstrata.data import quadratics
from fedstrata.descent import Federation
from fedstrata.runtimes import Stacked, Vault
from fedstrata.simulate import first_server, first_stats, play
from fedstrata.task import Task
from tests.federations import flat


def error(recipe: fs.Recipe, rounds: int = 200, **training) -> float:
    """Distance to the true optimum of five clients that disagree."""
    problem = quadratics()
    train = fs.SGD(**{"lr": 0.1, "batch": None, "epochs": 10} | training)
    how = {"rounds": rounds, "training": train, "loss": "squared_error", "evaluate_every": rounds}
    run = fs.simulate(recipe, problem.model(), problem.clients, **how)
    return (flat(run.model) - problem.optimum).norm().item()


def test_the_optimum_of_the_quadratics_is_where_their_mean_gradient_is_zero():
    problem = quadratics()
    x, y = problem.clients.x, problem.clients.y[:, 0]
    assert (x.T @ (x @ problem.optimum - y)).norm() < 1e-9


def test_scaffold_reaches_the_optimum():
    assert error(fs.recipes.scaffold(), rounds=120) < 1e-9


def test_feddyn_reaches_the_optimum():
    assert error(fs.recipes.feddyn(alpha=1.0), rounds=120) < 1e-9


def test_feddc_reaches_the_optimum():
    assert error(fs.recipes.feddc(alpha=1.0), rounds=60) < 1e-9


@pytest.mark.parametrize("recipe", [fs.recipes.fedavg(), fs.recipes.fedprox(mu=1.0)])
def test_averaging_of_drifted_clients_does_not(recipe):
    assert error(recipe, rounds=40) > 0.1


def test_without_drift_fedavg_reaches_it_too():
    assert error(fs.recipes.fedavg(), rounds=400, epochs=1) < 1e-9


def test_scaffold_counts_steps_not_epochs():
    assert error(fs.recipes.scaffold(), batch=2, epochs=1, rounds=100) < 0.5  # batches of different rows: near it


def test_feddyn_memory_is_the_gradient_at_an_exact_local_solution():
    problem = quadratics()
    recipe, train = fs.recipes.feddyn(alpha=1.0), fs.SGD(lr=0.1, batch=None, epochs=2000)
    task = Task.of(problem.model(), "squared_error")
    fed = Federation(recipe, task, problem.clients, train)
    vault = Vault(recipe.enroll(task, {}))
    play(fed, Stacked(fed, vault, {}), first_server(fed, problem.model(), first_stats(fed)), None, "drop")
    for k, memory in vault.memories.items():
        x, y = problem.clients.x[problem.clients.rows[k]], problem.clients.y[problem.clients.rows[k]][:, 0]
        g = memory["local.0"]["g"]
        w_k = -g / 1.0  # g' = -alpha (w_k - 0) in the first round from w = 0
        torch.testing.assert_close(g, x.T @ (x @ w_k - y) / len(x), rtol=0, atol=1e-8)
