"""A federation of twenty unequal clients in a few lines: the example of the README."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedstrata as fs

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
torch.manual_seed(0)
clients = fs.Dirichlet(clients=20, alpha=0.1).split(x[:1400], y[:1400], seed=0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

run = fs.simulate(fs.recipes.fedlws(beta=0.1), model, clients, rounds=20,
                  training=fs.SGD(lr=0.03, momentum=0.9, batch=20, epochs=3),
                  test=(x[1400:], y[1400:]), seed=0)  # fmt: skip

print(f"test accuracy {run.final['test']['accuracy']:.3f}")
print(f"accuracy on the worst tenth of the clients {run.final['clients']['worst10']:.3f}")
print("shrinking factor of each layer in the last round:")
for layer, gamma in zip(run.layout.layers, run.notes[-1]["gamma"].tolist(), strict=True):
    print(f"  {layer}: {gamma:.4f}")
