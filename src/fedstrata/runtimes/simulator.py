"""Sampled clients stacked on one device, in chunks that fit its memory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstrata.core import Cohort, State
from fedstrata.errors import ClientError, FedstrataError
from fedstrata.layout import Arrays
from fedstrata.runtimes.vault import Vault
from fedstrata.runtimes.visit import errand_for, joined, visit
from fedstrata.server import Replies, Server
from fedstrata.train import Federation, survey

SHARE_OF_MEMORY = 0.25
"""What a chunk may take: of all memory, not of what happens to be free, so that the same run has the same chunks."""


@dataclass(frozen=True)
class Simulator:
    """Trains the cohort stacked, `chunk` clients at a time."""

    fed: Federation
    vault: Vault
    chunk: int | None = None

    def survey(self, server: Server, names: frozenset[str], ids: Sequence[int]) -> Arrays:
        step = self.chunk or clients_at_once(self.fed, server.model)
        chunks = [ids[i : i + step] for i in range(0, len(ids), step)]
        answers = [survey(self.fed, errand_for(self.fed, self.vault, server, c, names)) for c in chunks]
        return {n: torch.cat([a[n] for a in answers]) for n in names}

    def train(self, server: Server, cohort: Cohort, brief: State, probes: frozenset[str]) -> Replies:
        step = self.chunk or clients_at_once(self.fed, server.model)
        parts = [slice(i, i + step) for i in range(0, len(cohort), step)]
        try:
            return joined([visit(self.fed, self.vault, server, cohort, brief, probes, part) for part in parts])
        except RuntimeError as e:
            if isinstance(e, FedstrataError):
                raise
            what = f"round {server.number}: the stacked clients failed ({str(e).splitlines()[0]})"
            raise ClientError(
                f"{what}; runtime = 'apart' names the client, and runs models that vmap cannot stack"
            ) from e


def clients_at_once(fed: Federation, w: Tensor) -> int:
    """How many clients of this task fit into our share of the device's memory."""
    example = fed.clients.x[:1]
    batch = fed.training.batch or int(fed.clients.sizes.max())
    work = 10 * w.numel() + 3 * batch * (example.numel() + _activations(fed, example))  # copies of P held at the peak
    return max(1, int(SHARE_OF_MEMORY * _memory(w.device) / (work * w.element_size())))


def _activations(fed: Federation, example: Tensor) -> int:
    """Numbers that the layers put out for one example."""
    seen: list[int] = []

    def count(_module: object, _args: object, out: object) -> None:
        seen.append(out.numel() if isinstance(out, Tensor) else 0)

    model = fed.task.eval_mode
    hooks = [m.register_forward_hook(count) for m in model.modules() if not list(m.children())]
    try:
        with torch.no_grad():
            model(example)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(seen)


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
