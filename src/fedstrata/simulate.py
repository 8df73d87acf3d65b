"""A whole federation on one machine: the round loop that every runtime shares."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.augment import Augment
from fedstrata.buffers import BufferPolicy
from fedstrata.clients import Clients, cast, pair
from fedstrata.core import Proxy, Recipe, State
from fedstrata.descent import Federation
from fedstrata.errors import DataError, SettingError, check
from fedstrata.evaluate import client_scores, fairness, summary
from fedstrata.faults import Fates, Faults
from fedstrata.hooks import telling
from fedstrata.layout import Arrays, Layout
from fedstrata.memory import kept
from fedstrata.optim import SGD, Training
from fedstrata.parse import parse_recipe
from fedstrata.precision import Precision, multiplying
from fedstrata.probes import PROBES
from fedstrata.record import Recorder, finished, notes_by_round, read_model, read_notes, read_rounds, refuse_other_file
from fedstrata.rng import rng
from fedstrata.runtimes import Compile, Engine, Faulty, Runtime, Vault, chosen, clock, collect, shared, updates_at_once
from fedstrata.server import OnNonFinite, Replies, Server, clients_in_words, close_round, has_data, open_round
from fedstrata.stopping import Stopped, Stopping
from fedstrata.task import Batch, Loss, Task, accuracy, are_labels, buffers_of
from fedstrata.threads import fitting_threads, threads
from fedstrata.trial import check_classifier, check_model, try_out
from fedstrata.values import Value, fit

Examples = tuple[Any, Any]
"""A pair (x, y) of arrays or tensors."""


@dataclass(frozen=True)
class Plan(Value):
    """How a run goes, whatever it is about; an experiment is a plan with the rest."""

    rounds: int
    seed: int = 0
    buffers: BufferPolicy = "average"
    on_nonfinite: OnNonFinite = "drop"
    evaluate_every: int = 1
    evaluate_train: bool = True  # the clients' own data too, and how the scores spread over them
    engine: Engine = "auto"
    chunk: int | None = None  # clients stacked at a time: as many as fit unless given
    workers: int | None = None  # processes of the pool, or of the cluster: one a core unless given
    device: str = "cpu"
    precision: Precision = "float32"  # of products
    compile: Compile = "auto"  # a GPU's local step
    memory: float | None = None  # GiB for the updates of a round: half of what the machine or the GPU has unless given
    checkpoint: int = 10  # rounds after which all that it takes to go on is written into the run folder
    faults: Faults | None = None  # what goes wrong on purpose
    ray_address: str | None = None  # of a Ray cluster, e.g. 10.0.0.1:6379: one on this machine unless given

    @classmethod
    def called(cls, name: str) -> str:
        return name  # as in its TOML file, and in `simulate`

    def settings(self) -> dict[str, Any]:
        """What its TOML file says."""
        return {k: v for k, v in self.to_dict().items() if k != "kind"}

    def validate(self) -> None:
        check(self.rounds >= 1, f"rounds must be at least 1; got {self.rounds}")
        check(self.seed >= 0, f"seed must not be negative; got {self.seed}")
        check(self.evaluate_every >= 1, f"evaluate_every must be at least 1; got {self.evaluate_every}")
        check(self.chunk is None or self.chunk >= 1, f"chunk must be at least 1; got {self.chunk}")
        check(self.memory is None or self.memory > 0, f"memory must be above 0; got {self.memory}")
        check(self.workers is None or self.workers >= 1, f"workers must be at least 1; got {self.workers}")
        check(self.checkpoint >= 1, f"checkpoint must be at least 1; got {self.checkpoint}")
        fits = self.ray_address is None or self.engine == "ray"
        check(fits, f"ray_address is for engine = 'ray', and the engine is {self.engine!r}; leave one of them out")


@dataclass(frozen=True, eq=False)
class Run:
    """What a simulation gave."""

    recipe: Recipe
    model: nn.Module  # the trained global model
    layout: Layout
    rounds: list[dict[str, Any]]  # what rounds.jsonl holds: one dictionary a round
    notes: list[Arrays]  # diagnostics of every round: weights, drift, gamma, ...
    folder: Path | None = None

    @property
    def final(self) -> dict[str, Any]:
        """The last round that was evaluated."""
        return next((r for r in reversed(self.rounds) if r.keys() & {"train", "val", "test"}), {})


def simulate(
    recipe: Recipe | str,
    model: nn.Module,
    clients: Clients | Sequence[Examples],
    *,
    rounds: int,
    training: Training | None = None,
    test: Examples | None = None,
    val: Examples | None = None,
    proxy: Examples | None = None,
    loss: str | Loss = "cross_entropy",
    metrics: Mapping[str, Loss] | None = None,
    augment: Augment | None = None,
    seed: int = 0,
    buffers: BufferPolicy = "average",
    on_nonfinite: OnNonFinite = "drop",
    evaluate_every: int = 1,
    evaluate_train: bool = True,
    engine: Engine = "auto",
    chunk: int | None = None,
    workers: int | None = None,
    device: str = "cpu",
    precision: Precision = "float32",
    compile: Compile = "auto",
    memory: float | None = None,
    checkpoint: int = 10,
    faults: Faults | None = None,
    ray_address: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Run a federation of clients for some rounds; the model given is left as it is.

    `recipe` may be a text, "fedprox(mu=0.1) + lws". `clients` is a list of (x, y) pairs or what a partitioner returns.
    `loss` is "cross_entropy", "squared_error" or a function of (outputs, targets); `metrics` are functions that give
    one number an example. `faults` go wrong on purpose. With `out`, everything is written into that folder as it
    happens; `settings` is what its experiment.toml says. With `resume`, a run that was broken off there is gone on with
    from its last checkpoint.
    """
    algorithm: Recipe = parse_recipe(recipe) if isinstance(recipe, str) else fit(Recipe, recipe, "recipe")
    check_model(model)
    given = SGD() if training is None else fit(Training, training, "training")
    model, training = algorithm.adapt(model, given, seed)
    means = engine, chunk, workers, device, precision, compile, memory, checkpoint, faults, ray_address
    plan = Plan(rounds, seed, buffers, on_nonfinite, evaluate_every, evaluate_train, *means)
    nothing = "evaluate_train = false leaves nothing to evaluate on: give a test or a val set, or leave it true"
    check(evaluate_train or test is not None or val is not None, nothing)
    place = usable_device(device), Layout.of(model).dtype
    data = Clients.of(clients).owned().to(*place)
    x, y = shared(data.x, data.y)
    data = replace(data, x=x, y=y)
    fates = Fates.of(plan.faults, seed, data.sizes) if plan.faults is not None else None
    trained_on = data if fates is None else fates.poisoned(data)  # and evaluated on what is true
    task = Task.of(model, loss, metrics, device)
    at = first_model(task, model)
    made = try_out(task, *at, data.x, data.y)
    classes = made.shape[1] if made.dim() == 2 else 0
    if metrics is None and not isinstance(loss, str) and are_labels(data.y, classes):
        task = replace(task, metrics={"accuracy": accuracy})
    fed = Federation(algorithm, task, trained_on, training, seed, plan.buffers, augment, fates)
    settings = settings or _known(fed, model, plan)
    if resume and out is not None and finished(out):
        return _ended(algorithm, model, Path(out), settings, rounds)
    algorithm.check(offered(task, data.y, classes, proxy is not None))
    check_classifier(task, *at, data.x, algorithm.needs)
    server = first_server(fed, model, first_stats(fed))
    if augment is not None:
        augment.apply(data.x[:1], torch.zeros(1, 3, dtype=torch.long, device=data.x.device))  # or it says why not
    sets = _sets(fed, server, val=val, test=test, proxy=proxy)
    held = sets.pop("proxy", None)
    sets |= {"train": (data.x, data.y)} if evaluate_train else {}
    at = server.model, server.buffers
    room = None if memory is None else memory * 2**30
    vault = Vault.of(fresh_memory(fed, *at), len(data), room, None if out is None else Path(out))
    runtime = chosen(engine, fed, vault, sets, at, rounds, chunk, workers, compile, precision, ray_address)
    runtime = Faulty(runtime, fates) if fates is not None else runtime
    recorder = Recorder(out, algorithm, settings, fed.task.layout, vault, data)
    with closing(recorder), closing(runtime), closing(vault), multiplying(precision), kept():
        if resume:
            server = recorder.resume(server, rounds)
        else:
            recorder.begin()
        server = _rounds(fed, runtime, server, plan, held, recorder, on_round)
        trained = trained_model(algorithm, model, server)
        recorder.finish(trained)
    return Run(algorithm, trained, fed.task.layout, recorder.lines, recorder.notes, recorder.folder)


def _sets(fed: Federation, server: Server, **given: Examples | None) -> dict[str, tuple[Tensor, Tensor]]:
    """The sets that were given, by name, where the clients' data is; the model has been tried out on each."""
    place = fed.clients.x.device, fed.task.layout.dtype
    sets = {n: shared(*_examples(s, f"the {n} set", *place)) for n, s in given.items() if s is not None}
    for name, examples in sets.items():
        try_out(fed.task, server.model, server.buffers, *examples, f"the {name} set")
    return sets


def _known(fed: Federation, model: nn.Module, plan: Plan) -> dict[str, Any]:
    """What can be said of a run in its experiment.toml, where model and data were made in Python."""
    made = f"{type(model).__name__} of {fed.task.layout.size} parameters, {len(fed.clients)} clients"
    said = {"made_in_python": made} | plan.settings()
    said |= {"training": fed.training.to_dict(), "recipe": fed.recipe.to_dict()}
    return said | ({"augment": fed.augment.to_dict()} if fed.augment is not None else {})


def _rounds(
    fed: Federation,
    runtime: Runtime,
    server: Server,
    plan: Plan,
    held: tuple[Tensor, Tensor] | None,
    recorder: Recorder,
    on_round: Callable[[dict[str, Any]], None] | None,
) -> Server:
    """Round after round, from the server's on: the server at the end."""
    work = fed.task.layout.size * (fed.training.batch or 1) * fed.recipe.select.size(server.population)
    room = updates_at_once(fed, plan.memory)
    with recorder.recording(), Stopping(recorder.folder is not None) as stopping:
        for number in range(server.number, plan.rounds):
            began = clock()
            with fitting_threads(work):
                server, line, noted = play(fed, runtime, server, held, plan.on_nonfinite, room)
            if (number + 1) % plan.evaluate_every == 0 or number + 1 == plan.rounds:
                line |= evaluate(fed, runtime, server)
            recorder.round(line | {"seconds": round(clock() - began, 4)}, noted)
            if on_round is not None:
                on_round(recorder.lines[-1])
            asked = stopping.asked
            if asked or (number + 1) % plan.checkpoint == 0:
                recorder.checkpoint(server)
            if asked and number + 1 < plan.rounds:
                go_on = f"go on by fedstrata run --resume {recorder.folder}"
                raise Stopped(f"stopped after {number + 1} rounds; {go_on}", asked)
    if fed.recipe.finish:
        began = clock()
        server = finish(fed, runtime, server)
        line = finish_line(server) | evaluate(fed, runtime, server)
        recorder.round(line | {"seconds": round(clock() - began, 4)})
    return server


def finish_line(server: Server) -> dict[str, Any]:
    """What the record says of what a recipe does once, after the last round."""
    return {"round": server.number, "finish": True, "cohort": has_data(server.stats).tolist(), "dropped": []}


def play(
    fed: Federation,
    runtime: Runtime,
    server: Server,
    held: tuple[Tensor, Tensor] | None,
    on_nonfinite: OnNonFinite,
    room: int | None = None,
    present: Tensor | None = None,
    spare: float = 0.0,
) -> tuple[Server, dict[str, Any], Arrays]:
    """One round from beginning to end: (the server after it, what the record says of it, its notes).

    Of a larger cohort than there is room for, so many updates at a time are merged into one. On a network, clients
    are picked among those `present`, [N], and this share more of them than are needed is asked, to `spare` some.
    """
    recipe, number = fed.recipe, server.number
    ask = partial(runtime.survey, server)
    server, cohort, brief = open_round(recipe, server, rng(fed.seed, "select", number), ask, present, spare)
    probes = (recipe.needs & PROBES.keys()) - recipe.select.asks - recipe.briefing
    replies, dropped = Replies(cohort.ids[:0], server.model.new_zeros(0, server.layout.size)), []
    if len(cohort):
        replies, dropped = collect(fed, runtime, server, cohort, brief, probes, on_nonfinite, room)
    proxy = Proxy(fed.task, Batch(*held), server.buffers) if held is not None else None
    lr = fed.training.rate(number)
    server, notes = close_round(recipe, server, cohort, replies, proxy, fed.buffers, fed.training, lr, fed.seed)
    return server, _line(fed, number, cohort.ids.tolist(), dropped, len(replies.ids) == 0), notes


def _line(fed: Federation, number: int, cohort: list[int], dropped: list[int], empty: bool) -> dict[str, Any]:
    """What the record says of a round: who took part, what went wrong."""
    line: dict[str, Any] = {"round": number, "cohort": cohort, "dropped": dropped}
    if fed.fates is not None and (struck := fed.fates.told(number, cohort)):
        line["faults"] = struck
    if dropped:
        line["warnings"] = [f"{clients_in_words(dropped)} returned values that are NaN or infinite and did not count"]
    if empty:
        line["empty"] = True
        line["warnings"] = [*line.get("warnings", []), "no client was usable, so nothing changed"]
    return line


@telling("after the last round")
def finish(fed: Federation, runtime: Runtime, server: Server) -> Server:
    """The server after what the recipe does once, at the end, with every client's answers."""
    model = fed.recipe.shown(server.state, server.model)
    for i, part in enumerate(fed.recipe.finish):
        server = replace(server, model=model)
        pool = has_data(server.stats)
        answers = runtime.survey(server, part.asks, pool.tolist())
        answers["examples"] = server.stats["examples"][pool.to(server.model.device)]
        told = torch.stack([a.isfinite().reshape(len(a), -1).all(1) for a in answers.values()]).all(0)
        stats = {n: v[told] for n, v in answers.items()}
        model = part.finish(model, server.buffers, stats, fed.task, rng(fed.seed, "finish", i))
    return replace(server, model=model, state=fed.recipe.init(server.layout, server.population))  # no average to show


def evaluate(fed: Federation, runtime: Runtime, server: Server) -> dict[str, Any]:
    """Loss and metrics of the global model on every set, and how they spread over the clients' own data."""
    model = fed.recipe.shown(server.state, server.model)
    scores = {n: runtime.score(model, server.buffers, n) for n in ("train", "val", "test") if n in runtime.sets}
    with threads(1):  # of some thousand numbers each
        line: dict[str, Any] = {n: summary(s) for n, s in scores.items()}
    if "train" in scores:
        watched, best = ("accuracy", "high") if "accuracy" in fed.task.metrics else ("loss", "low")
        each = client_scores(scores["train"], fed.clients.rows)[watched]
        line["clients"] = fairness(each[fed.clients.sizes > 0], best)
    return line


def _ended(recipe: Recipe, model: nn.Module, folder: Path, settings: Mapping[str, Any], rounds: int) -> Run:
    """What a run folder holds of a run that came to its end."""
    refuse_other_file(settings, folder)
    lines = read_rounds(folder)
    done = sum("finish" not in line for line in lines)
    if done == 0:
        anew = f"put back a copy of it, or remove {folder} and run it again"
        raise DataError(f"the run in {folder} has ended, and its rounds.jsonl is empty; {anew}")
    if rounds != done:
        raise SettingError(f"the run in {folder} has ended after {done} rounds; run {rounds} into another folder")
    trained = read_model(folder, model)
    return Run(recipe, trained, Layout.of(model), lines, notes_by_round(read_notes(folder), done), folder)


def first_stats(fed: Federation) -> Arrays:
    """What the server knows of every client before the first round, [N, ...] each."""
    labels = {"labels": fed.clients.labels()} if "labels" in fed.recipe.needs else {}
    return {"examples": torch.from_numpy(fed.clients.sizes).double()} | labels


def first_server(fed: Federation, model: nn.Module, stats: Arrays) -> Server:
    """The server before the first round, with what it knows of its clients."""
    layout = fed.task.layout
    stats = {n: v.to(layout.device) for n, v in stats.items()}
    return Server(layout, *first_model(fed.task, model), fed.recipe.init(layout, len(stats["examples"])), stats)


def first_model(task: Task, model: nn.Module) -> tuple[Tensor, Arrays]:
    """The parameters, [P], and the buffers before the first round."""
    named = {n: p for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    return task.layout.flatten(named), {n: b.to(task.layout.device) for n, b in buffers_of(model).items()}


def fresh_memory(fed: Federation, model: Tensor, buffers: Arrays) -> State:
    """What a client remembers before its first turn; the buffers are those before the first round."""
    kept = {"optimizer": fed.training.init(model)} if not fed.training.reset_optimizer else {}
    kept |= {"buffers": buffers} if fed.buffers == "local" else {}
    return fed.recipe.enroll(fed.task, buffers) | kept


def offered(task: Task, y: Tensor, classes: int, proxy: bool) -> frozenset[str]:
    """What an experiment with this model, of so many outputs, and these targets gives a recipe."""
    have = {*PROBES, "steps"} - {"accuracy"}
    have |= {"proxy"} if proxy else set()
    head = f"{task.classifier}."
    before = [n for n in task.layout.layers if not f"{n}.".startswith(head)]
    has_features = bool(task.classifier and before)  # else they are the raw examples
    have |= {"features"} if has_features else set()
    have |= {"labels", "accuracy"} if are_labels(y, classes) else set()
    return frozenset(have)


def usable_device(name: str) -> torch.device:
    """The device of this name, if it is there."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as e:
        why = str(e).splitlines()[0]
        others = ["cpu"] + ["cuda"] * torch.cuda.is_available()
        raise SettingError(f"the device {name!r} cannot be used here ({why}); choose {' or '.join(others)}") from None
    return device


def _examples(given: Examples, name: str, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x, y = pair(given, name)
    if len(x) == 0:
        raise DataError(f"{name} is empty; leave it out, or give it examples")
    return cast(x, device, dtype), cast(y, device, dtype)


def trained_model(recipe: Recipe, model: nn.Module, server: Server) -> nn.Module:
    """A copy of the model with the parameters that the recipe hands out, and the server's buffers."""
    trained, w = deepcopy(model), recipe.shown(server.state, server.model)
    device = next(trained.parameters()).device
    named = dict(trained.named_parameters(remove_duplicate=False)) | dict(trained.named_buffers())
    with torch.no_grad():
        for name, value in (server.layout.unflatten(w) | server.buffers).items():
            named[name].copy_(value.to(device))
    return trained
