"""FedJAX: its for_each_client, compiled by jax, for the logistic regression."""

import sys
from time import perf_counter

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.script import Job, main
from benchmarks.workloads import Workload


def run(job: Job):
    """FedJAX with its jit backend, on padded batches of one shape."""
    work = job.work
    if work.model != "logreg" or job.dtype != "float32":
        sys.exit(f"FedJAX is here for workload A in float32; got {work.name} in {job.dtype}")
    x, y = work.train()
    sets = {n: tuple(map(jnp.asarray, s)) for n, s in {"train": (x, y), **work.held_out()}.items()}
    model = dict(zip(("weight", "bias"), map(jnp.asarray, work.weights()), strict=True))
    trainer, score = trainer_of(work), jax.jit(scores)
    for round in range(job.rounds):
        began = perf_counter()
        cohort = work.cohort(round).tolist()
        shares = dict(zip(cohort, work.shares(round).tolist(), strict=True))
        mean = fedjax.tree_util.tree_zeros_like(model)
        for k, local in trainer(model, [(k, batches(work, x, y, round, k), None) for k in cohort]):
            mean = fedjax.tree_util.tree_add(mean, fedjax.tree_util.tree_weight(local, shares[k]))
        model = jax.block_until_ready(mean)
        trained = perf_counter()
        metrics = {n: tuple(float(v.mean()) for v in score(model, *s)) for n, s in sets.items()}
        job.lap(trained - began, perf_counter() - trained, metrics)
    return [model["weight"], model["bias"]]


def trainer_of(work: Workload):
    """for_each_client of local training: (model, clients) -> (client, its model) one after another."""
    optimizer = fedjax.optimizers.sgd(work.lr, work.momentum)

    def loss(model, start, batch):
        losses, _ = scores(model, batch["x"], batch["y"])
        moved = sum(((model[n] - start[n]) ** 2).sum() for n in model)
        return (losses * batch["weight"]).sum() + work.mu / 2 * moved

    def init(start, _):
        return {"start": start, "model": start, "optimizer": optimizer.init(start)}

    def step(state, batch):
        grad = jax.grad(loss)(state["model"], state["start"], batch)
        memory, model = optimizer.apply(grad, state["optimizer"], state["model"])
        return state | {"model": model, "optimizer": memory}

    return fedjax.for_each_client(init, step, lambda _, state: state["model"])


def scores(model, x, y):
    """The loss of each example, and whether it is right."""
    outputs = x @ model["weight"].T + model["bias"]
    losses = -jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], 1)[:, 0]
    return losses, outputs.argmax(1) == y


def batches(work: Workload, x: np.ndarray, y: np.ndarray, round: int, client: int):
    """A client's batches, padded to one shape; what is padded has no weight."""
    rows = work.batches(round, client)
    index, weight = np.zeros((len(rows), work.batch), int), np.zeros((len(rows), work.batch), np.float32)
    for s, mine in enumerate(rows):
        index[s, : len(mine)] = mine
        weight[s, : len(mine)] = 1 / len(mine)
    xs, ys = x[index], y[index].astype(np.int32)
    return [{"x": xs[s], "y": ys[s], "weight": weight[s]} for s in range(len(rows))]


if __name__ == "__main__":
    main("fedjax", run)
