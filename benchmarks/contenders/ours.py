"""fedstrata itself, through nothing but fedstrata.simulate.

A round is timed from one call of `on_round` to the next, all that the library does included. It has no hook between
training and evaluation, so with --split the same rounds run a second time and are evaluated only once, at the end: that
gives the seconds of training, and evaluation is the rest of the round.
"""

import gc
import inspect
import sys
from statistics import median
from time import perf_counter

import torch

import fedstrata as fs
from benchmarks.script import Job, main
from benchmarks.torch_parts import arrays_of, load
from benchmarks.workloads import CLASSES

ENGINES = ("auto", "stacked", "pool", "apart")
ACCEPTED = inspect.signature(fs.simulate).parameters
SPLIT_ROUNDS = 5  # of training alone, at most: enough for a median


def run(job: Job):
    """One simulation, and with --split another one without evaluation."""
    if job.threads:
        torch.set_num_threads(job.threads)
    laps, lines, model = timed(job, job.rounds, evaluate_every=1)
    alone = None
    if job.options.split:
        gc.collect()
        rounds = min(job.rounds, 1 + SPLIT_ROUNDS) + 1  # the last is evaluated, and left out
        alone = median(timed(job, rounds, evaluate_every=rounds, count=False)[0][1:-1])
    for seconds, line in zip(laps, lines, strict=True):
        train = min(alone, seconds) if alone is not None else seconds
        metrics = {n: (line[n]["loss"], line[n]["accuracy"]) for n in ("train", *job.work.held) if n in line}
        job.clock.add(train, seconds - train, metrics)
    return arrays_of(model)


def timed(job: Job, rounds: int, evaluate_every: int, count: bool = True):
    """A simulation: (seconds of each round, what the record says of it, the model)."""
    laps: list[float] = []
    mark = perf_counter()

    def lap(line: dict) -> None:
        nonlocal mark
        laps.append(perf_counter() - mark)
        if count and len(laps) in (1, rounds):
            job.clock.read_cpu()
        mark = perf_counter()

    run = fs.simulate(*federation(job), rounds=rounds, evaluate_every=evaluate_every, on_round=lap, **settings(job))
    return laps, run.rounds, run.model


def federation(job: Job):
    """The recipe, the model and the clients."""
    work = job.work
    everyone = work.cohort_size == work.clients
    slots = {} if everyone else {"select": fs.parts.Sample(k=work.cohort_size)}
    recipe = fs.recipes.fedprox(mu=work.mu, **slots) if work.mu else fs.recipes.fedavg(**slots)
    model = fs.models.MODELS[work.model](work.shape, CLASSES).to(getattr(torch, job.dtype))
    load(model, work.weights())
    return recipe, model, fs.Clients.split(*work.train(), [work.rows(k) for k in range(work.clients)])


def settings(job: Job) -> dict:
    """What simulate is told besides: the training, what to evaluate, the engine."""
    work, held = job.work, job.work.held_out()
    how = {"lr": work.lr, "batch": work.batch, "epochs": work.epochs, "weight_decay": work.weight_decay}
    training = fs.Adam(**how) if work.optimizer == "adam" else fs.SGD(**how, momentum=work.momentum)
    known = {"training": training, "test": held["test"], "val": held.get("val"), "seed": work.seed}
    if "evaluate_train" in ACCEPTED:
        known["evaluate_train"] = work.evaluates_train
    return known | engine(job.options.engine)


def engine(name: str) -> dict[str, str]:
    """How this version of the library is told which engine to use."""
    if "engine" in ACCEPTED:
        return {"engine": name}
    older = {"auto": "simulator", "stacked": "simulator", "apart": "apart"}
    if name not in older:
        sys.exit(f"this fedstrata has no engine {name!r}; it has {', '.join(older)}")
    return {"runtime": older[name]}


def _options(parser) -> None:
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    parser.add_argument("--split", action="store_true", help="tell training from evaluation, by a second run")


if __name__ == "__main__":
    main("ours", run, _options)
