"""FedNova: clients that take more steps pull the average towards themselves; normalising undoes it."""

import torch
from torch import nn

import fedstrata as fs
from tests.federations import flat


def error(recipe: fs.Recipe) -> float:
    """Distance to the minimiser of sum_k p_k |w - b_k|^2 / 2 for clients of very unequal numbers of steps."""
    sizes, b = (2, 6, 20), torch.tensor([[3.0, 0.0], [0.0, -2.0], [1.0, 1.0]], dtype=torch.float64)
    clients = [(torch.eye(2, dtype=torch.float64).repeat(n // 2, 1) * 2**0.5, b[k].repeat(n // 2)[:, None] * 2**0.5)
               for k, n in enumerate(sizes)]  # fmt: skip
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    training = fs.SGD(lr=0.01, batch=2)
    run = fs.simulate(recipe, model, clients, rounds=120, training=training, loss="squared_error", evaluate_every=120)
    p = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    return (flat(run.model) - p @ b).norm().item()


def test_fednova_removes_the_bias_of_unequal_steps_and_fedavg_does_not():
    biased, mended = error(fs.recipes.fedavg()), error(fs.recipes.fednova())
    assert biased > 0.2
    assert mended < biased / 10
