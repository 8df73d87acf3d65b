"""How long the server takes to aggregate, beside FedAvg: FedLWS's Table 3.

The clients' updates are drawn at random, and nobody trains; the server's half of a round is what a run does, from
looking for NaN to the checked model. All rows of a column take turns, so that a busy machine disturbs them alike, and
medians are told: of seconds of the processor, so that others' work does not count, or on a GPU of the clock. Learning
on the server (FedLAW) is timed over one epoch, after another one, and all are counted like it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch

from fedstrata.core import Cohort, Proxy, Recipe
from fedstrata.experiment import Experiment
from fedstrata.lab.jobs import loaded
from fedstrata.layout import Layout
from fedstrata.parts import Learned
from fedstrata.reproduce.plan import Cell, Reproduction
from fedstrata.reproduce.results import Result, environment
from fedstrata.server import Replies, Server, close_round, screen
from fedstrata.task import buffers_of

EPOCHS = 1
"""Of learning on the server that is timed."""

TURNS = 15
"""That each row gets, after one to warm up; rows that learn on the server get one."""

MOMENT = 0.02
"""Seconds for which what is shorter is repeated."""


def aggregation(made: Reproduction, missing: Sequence[tuple[Cell, int]], means: dict[str, Any]) -> Iterator[Result]:
    """Seconds of every cell, and how many times those of the column's first row they are."""
    for column, seed in dict.fromkeys((c.column, seed) for c, seed in missing):
        cells = [c for c in made.cells if c.column == column]
        began = perf_counter()
        seconds = timed([replace(c.experiment(seed), **means) for c in cells])
        took = {"seconds": round((perf_counter() - began) / len(cells), 1)}
        for cell, each in zip(cells, seconds, strict=True):
            if (cell, seed) in missing:
                values = {"seconds": each, "ratio": each / seconds[0]}
                told = environment(replace(cell.experiment(seed), **means)) | took
                yield Result(cell.row, column, seed, made.scale, cell.fingerprint, 0, {}, values, told)


def timed(experiments: Sequence[Experiment]) -> list[float]:
    """Seconds that the server's half of a round takes in each: medians of turns."""
    halves = [server_half(exp) for exp in experiments]
    times: list[list[float]] = [[] for _ in halves]
    for turn in range(TURNS + 1):
        for mine, (half, scale) in zip(times, halves, strict=True):
            if turn < 2 or scale == 1:
                mine.append(scale * _seconds(half))
    return [median(t[1:]) for t in times]


def server_half(exp: Experiment) -> tuple[Callable[[], Any], float]:
    """(what a server does with the replies of a round, how many times it is to be counted)."""
    data = loaded(exp)
    net = exp.network(data).to(exp.device)
    recipe, scale = _shortened(exp.recipe)
    count = exp.partition.clients  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    layout, draw = Layout.of(net), torch.Generator(exp.device).manual_seed(exp.seed)
    old = layout.flatten({n: p.detach() for n, p in net.named_parameters()})
    delta = 0.01 * torch.randn(count, layout.size, generator=draw, device=exp.device)
    stats = {"examples": torch.arange(100.0, 100 + count, dtype=torch.float64, device=exp.device)}
    cohort = Cohort(layout, torch.arange(count), stats, old, count)
    server = Server(layout, old, buffers_of(net), recipe.init(layout, count), stats)
    sent = {n: b.expand(count, *b.shape).clone() for n, b in server.buffers.items()}
    x, y = (t[: exp.proxy or 1].to(exp.device) for t in data.test)
    proxy = Proxy.of(net, x, y) if exp.proxy else None

    def close() -> Any:
        usable, _ = screen(Replies(cohort.ids, delta, sent), 0, "drop", recipe, cohort)
        return close_round(recipe, server, cohort, usable, proxy)

    return close, scale


def _shortened(recipe: Recipe) -> tuple[Recipe, float]:
    """A recipe that learns on the server for few epochs alone, and how many times these all are."""
    if not isinstance(recipe.weigh, Learned) or recipe.weigh.epochs <= EPOCHS:
        return recipe, 1
    return replace(recipe, weigh=replace(recipe.weigh, epochs=EPOCHS)), recipe.weigh.epochs / EPOCHS


def _seconds(work: Callable[[], Any]) -> float:
    """That one of so many calls takes: clocks of processors may tick in hundredths of a second."""
    gpu = torch.cuda.is_available()
    clock = perf_counter if gpu else process_time
    began, took, count = clock(), 0.0, 0
    while took < MOMENT:
        work()
        if gpu:
            torch.cuda.synchronize()
        took, count = clock() - began, count + 1
    return took / count
