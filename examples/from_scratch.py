"""FedAvg without the library, to see that there is no magic; a test checks that both give the same model.

Every client copies the global model, trains it on its own examples, and sends it back; the server averages what it
gets, weighted by the number of examples. That is all of FedAvg (McMahan et al. 2017, Algorithm 1).
"""

from copy import deepcopy
from zlib import crc32

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

Client = tuple[Tensor, Tensor]


def skewed_clients(x: Tensor, y: Tensor, clients: int, alpha: float, seed: int) -> list[Client]:
    """Deal each class out over the clients in Dirichlet proportions: small alpha, unequal clients."""
    draw = np.random.default_rng(seed)
    owner = np.empty(len(y), dtype=int)
    for c in range(int(y.max()) + 1):
        mine = np.flatnonzero(y.numpy() == c)
        owner[mine] = draw.choice(clients, size=len(mine), p=draw.dirichlet(np.full(clients, alpha)))
    return [(x[owner == k], y[owner == k]) for k in range(clients) if (owner == k).any()]


def batches(n: int, size: int, epochs: int, seed: int, round: int, client: int) -> list[np.ndarray]:
    """The examples of each local step: shuffled anew every epoch, from (seed, round, client) alone."""
    draw = np.random.default_rng([seed, crc32(b"batches"), round, client])
    orders = [draw.permutation(n) for _ in range(epochs)]
    return [order[i : i + size] for order in orders for i in range(0, n, size)]


def train_locally(model: nn.Module, data: Client, lr: float, steps: list[np.ndarray]) -> nn.Module:
    """A client's work: a copy of the global model after some steps of SGD on its own data."""
    x, y = data
    mine = deepcopy(model)
    optimizer = torch.optim.SGD(mine.parameters(), lr=lr)
    for rows in steps:
        optimizer.zero_grad()
        nn.functional.cross_entropy(mine(x[rows]), y[rows]).backward()
        optimizer.step()
    return mine


def average(models: list[nn.Module], examples: list[int]) -> dict[str, Tensor]:
    """The server's work: w = sum_k n_k / n w_k, name by name."""
    states = [m.state_dict() for m in models]
    share = [n / sum(examples) for n in examples]
    return {name: torch.stack([p * s[name] for p, s in zip(share, states, strict=True)]).sum(0) for name in states[0]}


def fedavg(
    model: nn.Module,
    clients: list[Client],
    rounds: int,
    lr: float = 0.1,
    size: int = 20,
    epochs: int = 3,
    seed: int = 0,
) -> nn.Module:
    """Some rounds of it."""
    world = deepcopy(model)
    for t in range(rounds):
        trained = [
            train_locally(world, data, lr, batches(len(data[1]), size, epochs, seed, t, k))
            for k, data in enumerate(clients)
        ]
        world.load_state_dict(average(trained, [len(y) for _, y in clients]))
    return world


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of examples that the model gets right."""
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def main() -> None:
    """Twenty unequal clients learn handwritten digits."""
    digits, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(digits).float() / 16, torch.from_numpy(labels).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    clients = skewed_clients(x[:1400], y[:1400], clients=20, alpha=0.1, seed=0)
    print(f"{len(clients)} clients with {', '.join(str(len(y)) for _, y in clients)} examples")
    trained = fedavg(model, clients, rounds=20)
    print(f"test accuracy {accuracy(trained, x[1400:], y[1400:]):.3f} after 20 rounds")


if __name__ == "__main__":
    main()
