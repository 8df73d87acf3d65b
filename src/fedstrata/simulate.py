"""A whole federation on one machine: the round loop that every runtime shares."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedstrata.buffers import BufferPolicy
from fedstrata.clients import Clients, cast
from fedstrata.core import Proxy, Recipe, State
from fedstrata.errors import DataError, SettingError, check
from fedstrata.evaluate import client_scores, fairness, score, summary
from fedstrata.layout import Arrays, Layout
from fedstrata.optim import SGD, Training
from fedstrata.probes import PROBES
from fedstrata.record import Recorder
from fedstrata.rng import rng
from fedstrata.runtimes import Apart, Runtime, Simulator, Vault
from fedstrata.runtimes.threads import fitting_threads
from fedstrata.server import OnNonFinite, Replies, Server, clients_in_words, close_round, has_data, open_round, screen
from fedstrata.task import Batch, Loss, Task, buffers_of
from fedstrata.train import Federation

Examples = tuple[Any, Any]
"""A pair (x, y) of arrays or tensors."""


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
        return next((r for r in reversed(self.rounds) if "train" in r), {})


def simulate(
    recipe: Recipe,
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
    seed: int = 0,
    buffers: BufferPolicy = "average",
    on_nonfinite: OnNonFinite = "drop",
    evaluate_every: int = 1,
    runtime: Literal["simulator", "apart"] = "simulator",
    chunk: int | None = None,
    device: str = "cpu",
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Run a federation of clients for some rounds; the model given is left as it is.

    `clients` is a list of (x, y) pairs or what a partitioner returns. `loss` is "cross_entropy", "squared_error" or a
    function of (outputs, targets); `metrics` are functions that give one number an example. With `out`, everything is
    written into that folder as it happens; `settings` is what its experiment.toml says beyond what is known here.
    """
    check(rounds >= 1, f"rounds must be at least 1; got {rounds}")
    check(seed >= 0, f"seed must not be negative; got {seed}")
    check(evaluate_every >= 1, f"evaluate_every must be at least 1; got {evaluate_every}")
    training = training or SGD()
    task = Task.of(model, loss, metrics, device)
    place = task.layout.device, task.layout.dtype
    fed = Federation(recipe, task, Clients.of(clients).owned().to(*place), training, seed, buffers)
    recipe.check(_have(fed, proxy))
    server = _first(fed, model)
    vault = Vault(_fresh(fed, server))
    engine = _runtime(runtime, fed, vault, chunk)
    sets = {n: _examples(s, n, *place) for n, s in (("val", val), ("test", test)) if s is not None}
    held = _examples(proxy, "proxy", *place) if proxy is not None else None
    facts = {"rounds": rounds, "seed": seed, "training": training.to_dict(), "recipe": recipe.to_dict()}
    history: list[dict[str, Any]] = []
    notes: list[Arrays] = []
    with fitting_threads(fed, chunk), Recorder(out, recipe, settings or facts, task.layout) as recorder:
        for number in range(rounds):
            began = perf_counter()
            server, line, noted = play(fed, engine, server, held, on_nonfinite)
            if (number + 1) % evaluate_every == 0 or number + 1 == rounds:
                line |= evaluate(fed, server, sets)
            line["seconds"] = round(perf_counter() - began, 4)
            recorder.round(line, noted)
            history.append(line)
            notes.append(noted)
            if on_round is not None:
                on_round(line)
        trained = _trained(model, server)
        recorder.model(trained)
    return Run(recipe, trained, task.layout, history, notes, recorder.folder)


def play(
    fed: Federation, engine: Runtime, server: Server, held: tuple[Tensor, Tensor] | None, on_nonfinite: OnNonFinite
) -> tuple[Server, dict[str, Any], Arrays]:
    """One round from beginning to end: (the server after it, what the record says of it, its notes)."""
    recipe, number = fed.recipe, server.number
    server = _asked(recipe, engine, server)
    server, cohort, brief = open_round(recipe, server, rng(fed.seed, "select", number))
    probes = (recipe.needs & PROBES.keys()) - recipe.select.asks
    replies, dropped = Replies(cohort.ids, server.model.new_zeros(0, server.layout.size)), []
    if len(cohort):
        replies, dropped = screen(engine.train(server, cohort, brief, probes), number, on_nonfinite)
    proxy = Proxy(fed.task, Batch(*held), server.buffers) if held is not None else None
    lr = fed.training.rate(number)
    server, notes = close_round(recipe, server, cohort, replies, proxy, fed.buffers, fed.training, lr)
    line = {"round": number, "cohort": cohort.ids.tolist(), "dropped": dropped}
    if dropped:
        line["warnings"] = [f"{clients_in_words(dropped)} returned values that are NaN or infinite and did not count"]
    return server, line, notes


def evaluate(fed: Federation, server: Server, sets: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Loss and metrics of the global model on every set, and how they spread over the clients' own data."""
    trained = score(fed.task, server.model, server.buffers, fed.clients.x, fed.clients.y)
    others = {n: summary(score(fed.task, server.model, server.buffers, *s)) for n, s in sets.items()}
    watched, best = (next(iter(fed.task.metrics)), "high") if fed.task.metrics else ("loss", "low")
    spread = fairness(client_scores(trained, fed.clients.rows)[watched], best)
    return {"train": summary(trained), **others, "clients": spread}


def _asked(recipe: Recipe, engine: Runtime, server: Server) -> Server:
    """The server after every client has answered what the selection asks."""
    if not recipe.select.asks:
        return server
    pool = has_data(server.stats)
    answers = engine.survey(server, recipe.select.asks, pool.tolist())
    table = {n: v.new_full((server.population,), torch.nan) for n, v in answers.items()}
    return replace(
        server, stats=server.stats | {n: table[n].index_copy(0, pool.to(v.device), v) for n, v in answers.items()}
    )


def _first(fed: Federation, model: nn.Module) -> Server:
    """The server before the first round."""
    layout, device = fed.task.layout, fed.task.layout.device
    stats = {"examples": torch.from_numpy(fed.clients.sizes).double().to(device)}
    if "labels" in fed.recipe.needs:
        stats["labels"] = fed.clients.labels().to(device)
    named = {n: p for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    buffers = {n: b.to(device) for n, b in buffers_of(model).items()}
    return Server(layout, layout.flatten(named), buffers, fed.recipe.init(layout, len(fed.clients)), stats)


def _fresh(fed: Federation, server: Server) -> State:
    """What a client remembers before its first turn."""
    kept = {"optimizer": fed.training.init(server.model)} if not fed.training.reset_optimizer else {}
    kept |= {"buffers": server.buffers} if fed.buffers == "local" else {}
    return fed.recipe.enroll(fed.task, server.buffers) | kept


def _have(fed: Federation, proxy: Examples | None) -> frozenset[str]:
    """What this experiment gives a recipe."""
    have = {*PROBES, "steps"}
    have |= {"proxy"} if proxy is not None else set()
    have |= {"features"} if fed.task.classifier is not None else set()
    have |= {"labels"} if not fed.clients.y.is_floating_point() else set()
    return frozenset(have)


def _runtime(name: str, fed: Federation, vault: Vault, chunk: int | None) -> Runtime:
    check(chunk is None or chunk >= 1, f"chunk must be at least 1; got {chunk}")
    if name == "apart":
        return Apart(fed, vault)
    if name == "simulator":
        return Simulator(fed, vault, chunk)
    raise SettingError(f"no runtime is called {name!r}; choose simulator or apart")


def _examples(pair: Examples, name: str, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    one = Clients.of([pair])
    if len(one.x) == 0:
        raise DataError(f"the {name} set is empty")
    return cast(one.x, device, dtype), cast(one.y, device, dtype)


def _trained(model: nn.Module, server: Server) -> nn.Module:
    """A copy of the model with the server's parameters and buffers."""
    trained = deepcopy(model)
    device = next(trained.parameters()).device
    named = dict(trained.named_parameters(remove_duplicate=False)) | dict(trained.named_buffers())
    with torch.no_grad():
        for name, value in (server.layout.unflatten(server.model) | server.buffers).items():
            named[name].copy_(value.to(device))
    return trained
