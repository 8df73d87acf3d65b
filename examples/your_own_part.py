"""A weighting of your own in fifteen lines, checked, combined with others and run."""

from dataclasses import dataclass

import torch

import fedstrata as fs


@dataclass(frozen=True)
class Nearest(fs.Weigh):
    """Clients count by how near their update is to the mean one, layer by layer: weights ~ e^{-tau distance}."""

    tau: float = 1.0
    grain: fs.Grain = "layer"

    def weights(self, state, round):
        distance = round.layout.at(self.grain).distance(round.delta, round.delta.mean(0))  # [K, L]
        round.note(distance=distance)
        return torch.softmax(-self.tau * distance, 0), state


fs.testing.check_part(Nearest())  # frozen, pure, stackable, independent of the order of clients, ...

data = fs.data.dataset("digits")
clients = fs.Dirichlet(clients=20, alpha=0.1).split(*data.train)
model = fs.models.model("mlp", data.shape, data.classes)
for recipe in ("fedavg", "Nearest(tau=2.0)", "fedprox(mu=0.1) + Nearest(tau=2.0) + lws(beta=0.1)"):
    run = fs.simulate(recipe, model, clients, rounds=10, training=fs.SGD(lr=0.1, epochs=4), test=data.test)
    print(f"test accuracy {run.final['test']['accuracy']:.3f}  {recipe}")
