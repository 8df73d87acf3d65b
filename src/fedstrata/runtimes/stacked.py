"""Sampled clients stacked on one device, in chunks that fit its memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedstrata.core import Cohort, State
from fedstrata.descent import Federation, Steps, take_steps
from fedstrata.errors import ClientError, FedstrataError, PartError
from fedstrata.graphs import Captured
from fedstrata.hooks import told
from fedstrata.layout import Arrays
from fedstrata.memory import memory_of
from fedstrata.runtimes.visit import InProcess, errand_for, joined, visit
from fedstrata.server import Replies, Server
from fedstrata.train import survey

SHARE_OF_MEMORY = 0.25
"""What a chunk may take: of all memory, not of what happens to be free, so that the same run has the same chunks."""


@dataclass(frozen=True)
class Stacked(InProcess):
    """Trains the cohort stacked, `chunk` clients at a time."""

    chunk: int | None = None
    steps: Steps = take_steps

    @cached_property
    def at_once(self) -> int:
        """How many clients are stacked."""
        return self.chunk or clients_at_once(self.fed)

    def close(self) -> None:
        if isinstance(self.steps, Captured):
            self.steps.close()

    def survey(self, server: Server, names: frozenset[str], ids: Sequence[int]) -> Arrays:
        step = self.at_once
        chunks = [ids[i : i + step] for i in range(0, len(ids), step)]
        with _told(server.number):
            answers = [survey(self.fed, errand_for(self.fed, self.vault, server, c, names)) for c in chunks]
        return {n: torch.cat([a[n] for a in answers]) for n in names}

    def train(self, server: Server, cohort: Cohort, brief: State, probes: frozenset[str]) -> Replies:
        step = self.at_once
        parts = [slice(i, i + step) for i in range(0, len(cohort), step)]
        given = self.fed, self.vault, server, cohort, brief, probes
        with _told(server.number):
            return joined([visit(*given, part, steps=self.steps) for part in parts])


@contextmanager
def _told(number: int) -> Iterator[None]:
    """What fails here says the round, and what to do."""
    try:
        yield
    except PartError as e:
        raise ClientError(f"round {number}: {e}") from e
    except FedstrataError:
        raise
    except Exception as e:
        what = f"round {number}: the stacked clients failed ({told(e)})"
        raise ClientError(f"{what}; engine = 'apart' names the client, and runs models that vmap cannot stack") from e


def clients_at_once(fed: Federation, device: torch.device | None = None) -> int:
    """How many clients of this task fit into our share of the memory of a device: the task's own unless given."""
    layout, example = fed.task.layout, fed.clients.x[0].numel()
    batch = fed.training.batch or int(fed.clients.sizes.max())
    work = 10 * layout.size + 3 * batch * (example + activations(fed))  # copies of P held at the peak
    return max(1, int(SHARE_OF_MEMORY * memory_of(device or layout.device) / (work * layout.dtype.itemsize)))


def activations(fed: Federation) -> int:
    """Numbers that the layers put out for one example."""
    seen: list[int] = []

    def count(_module: object, _args: object, out: object) -> None:
        seen.append(out.numel() if isinstance(out, Tensor) else 0)

    model = fed.task.eval_mode
    hooks = [m.register_forward_hook(count) for m in model.modules() if not list(m.children())]
    try:
        with torch.no_grad():
            model(fed.clients.x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return sum(seen)
