"""How long the server's half of a round takes: `python -m benchmarks.aggregation`.

20 clients' updates of several models, drawn at random. Everything is run in turn, several times over, and medians are
told, so that a busy machine disturbs all alike; the least of each is what an idle one would take. With --steady each
is called three times at its turn, and the third call is timed: matrices of 10 MB are in the cache then, and nobody
else's threads wait for more work, busily, on the cores.

- dictionary loop: FedAvg as it is usually written, over the clients' state_dicts
- flat: torch.mv on the matrix [K, P] of updates, into memory that is already there; and into new memory, as it is
  usually called; and our own loop over blocks, which also adds the old model
- reading: torch.sum of the matrix, with all threads
- bandwidth floor: the bytes of the matrix by the bandwidth of reading 256 MiB so; smaller matrices are in the cache
- a method: `screen` and `close_round`, which is what a run does: look for NaN, average or weigh, mix the buffers, take
  notes, check the model; or `aggregate` alone
"""

import argparse
import copy
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import fedstrata as fs
from fedstrata import fused
from fedstrata.buffers import Buffers
from fedstrata.core import Cohort, Recipe, Round
from fedstrata.layout import Layout
from fedstrata.models.zoo import model
from fedstrata.server import Replies, Server, close_round, screen
from fedstrata.task import buffers_of
from fedstrata.threads import quiet

MODELS = ("simple_cnn", "resnet20", "resnet20(norm='group')", "vit", "wrn56_4", "densenet121")
METHODS = {
    "FedAvg": fs.recipes.fedavg(),
    "FedAvg + LWS": fs.recipes.fedlws(),
    "FedLayerWise": fs.recipes.fedlayerwise(),
    "FedAdp": fs.recipes.fedadp(),
    "L-DAWA": fs.recipes.ldawa(),
}
RESULTS, PART = Path(__file__).parent / "results", Path(".bench")
"""Where the numbers of all models are kept, and those of some, which must not take their place."""


class Case:
    """A model, and what its clients sent back."""

    def __init__(self, name: str, clients: int) -> None:
        net, draw = model(name, (3, 32, 32), 10), torch.Generator().manual_seed(0)
        self.layout = Layout.of(net)
        self.old = self.layout.flatten({n: p.detach() for n, p in net.named_parameters()})
        size = torch.linspace(0.01, 0.03, clients)[:, None]
        self.delta = torch.randn(clients, self.layout.size, generator=draw).mul_(size)
        self.examples = torch.arange(100.0, 100 + clients, dtype=torch.float64)
        self.buffers = buffers_of(net)
        self.sent = {n: b.expand(clients, *b.shape).clone() for n, b in self.buffers.items()}
        self.share = (self.examples / self.examples.sum()).float()
        self.out = torch.zeros_like(self.old)

    def contenders(self) -> dict[str, Callable[[], Any]]:
        """Everything that is timed, by name."""
        told: dict[str, Callable[[], Any]] = {
            "dictionary loop": self.dictionaries(),
            "flat": lambda: torch.mv(self.delta.t(), self.share, out=self.out),
            "flat, new memory": lambda: torch.mv(self.delta.t(), self.share),
            "flat, our loop": self.blocks(),
            "reading": lambda: self.delta.sum(),
        }
        for name, recipe in METHODS.items():
            told[name] = self.whole(recipe)
            told[f"{name}, aggregate alone"] = self.aggregate(recipe)
        return told

    def blocks(self) -> Callable[[], Any]:
        """Flat averaging by the compiled loop that methods mix with."""
        shares, keep = self.share.double()[:, None].expand(-1, self.layout.depth), self.layout.full(1.0)
        return lambda: fused.mix(self.layout, self.delta, self.old, shares, keep)

    def dictionaries(self) -> Callable[[], Any]:
        """FedAvg over state_dicts: one name after another, the sum over clients of weight times tensor."""
        sent = [
            self.layout.unflatten(self.old + d) | {n: b[k] for n, b in self.sent.items()}
            for k, d in enumerate(self.delta)
        ]
        weights = self.share.tolist()

        def loop() -> dict[str, Tensor]:
            mean = copy.deepcopy(sent[0])
            for name in mean:
                terms = (w * s[name] for w, s in zip(weights, sent, strict=True))
                mean[name] = sum(terms)  # pyright: ignore[reportArgumentType]
            return mean

        return loop

    def whole(self, recipe: Recipe) -> Callable[[], Any]:
        """What a run does once the replies are there."""
        k = len(self.delta)
        stats = {"examples": self.examples}
        server = Server(self.layout, self.old, self.buffers, recipe.init(self.layout, k), stats)
        cohort = Cohort(self.layout, torch.arange(k), stats, self.old, k)

        def close() -> Server:
            replies = Replies(cohort.ids, self.delta, self.sent)
            usable, _ = screen(replies, 0, "drop", recipe, cohort)
            return close_round(recipe, server, cohort, usable)[0]

        return close

    def aggregate(self, recipe: Recipe) -> Callable[[], Any]:
        """The recipe's half of it."""
        k = len(self.delta)
        cohort = Cohort(self.layout, torch.arange(k), {"examples": self.examples}, self.old, k)
        state, buffers = recipe.init(self.layout, k), Buffers(self.buffers, self.sent)

        def aggregate() -> Any:
            with quiet():
                return recipe.aggregate(state, Round(cohort, self.delta, buffers=buffers), {})

        return aggregate


def measure(name: str, clients: int, repeats: int, steady: bool) -> dict[str, Any]:
    """Milliseconds of every contender, all taking turns."""
    case, wide = Case(name, clients), torch.ones(1 << 26)
    contenders = case.contenders() | {"bandwidth floor": lambda: wide.sum()}
    times: dict[str, list[float]] = {n: [] for n in contenders}
    for turn in range(repeats + 1):  # the first warms up: compiles, faults memory in
        for n, run in contenders.items():
            for _ in range(2 * steady):
                run()
            began = perf_counter()
            run()
            if turn:
                times[n].append(1e3 * (perf_counter() - began))
    share = case.delta.numel() / wide.numel()
    times["bandwidth floor"] = [share * t for t in times["bandwidth floor"]]
    ms = {n: {"median": round(median(v), 4), "least": round(min(v), 4)} for n, v in times.items()}
    shape = {"parameters": case.layout.size, "tensors": len(case.layout.tensors), "layers": case.layout.depth}
    return {"model": name, "clients": clients, **shape, "buffers": len(case.buffers), "ms": ms}


def table(results: list[dict[str, Any]], which: str) -> str:
    """What was measured as Markdown: milliseconds, and in brackets how many times flat averaging that is."""
    names = list(results[0]["ms"])
    lines = ["| | " + " | ".join(r["model"] for r in results) + " |", "|---" * (len(results) + 1) + "|"]
    for n in names:
        cells = [f"{r['ms'][n][which]:.2f} ({r['ms'][n][which] / r['ms']['flat'][which]:.2f})" for r in results]
        lines.append(f"| {n} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, keep the numbers."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--models", default=",".join(MODELS))
    ask.add_argument("--clients", type=int, default=20)
    ask.add_argument("--repeats", type=int, default=31)
    ask.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    ask.add_argument("--steady", action="store_true")
    ask.add_argument("--out", type=Path)
    said = ask.parse_args()
    torch.set_num_threads(said.threads)
    results = [measure(name, said.clients, said.repeats, said.steady) for name in said.models.split(",")]
    machine = {"processor": platform.processor() or platform.machine(), "threads": said.threads}
    machine |= {"torch": torch.__version__, "numba": fused.kernels() is not None}
    folder = RESULTS if said.models == ",".join(MODELS) else PART
    out = said.out or folder / f"aggregation{'-steady' * said.steady}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
    for which in ("median", "least"):
        title = f"{which} ms of {said.repeats} (times flat averaging), {said.clients} clients"
        sys.stdout.write(f"\n{title}\n\n{table(results, which)}\n")


if __name__ == "__main__":
    main()
