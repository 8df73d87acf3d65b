"""What a recipe costs and what it reveals, from shapes alone."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves

from fedstrata.core import Cohort, Recipe, Turn
from fedstrata.layout import Arrays
from fedstrata.optim import SGD
from fedstrata.task import Task

REVEALED = {
    "labels": "its number of examples of each class",
    "loss": "its loss at the global model",
    "accuracy": "the global model's accuracy on its data",
    "gradient": "its gradient at the global model",
    "steps": "its number of local steps",
    "loss_variance": "the variance of its losses on one mini-batch",
    "gradient_variance": "the variance of its gradients on one mini-batch",
}
"""What each measurement tells the server about a client."""


@dataclass(frozen=True)
class CostCard:
    """Of one client in one round, in bytes; what it keeps between rounds; and what leaves it."""

    model: int
    down: int
    up: int
    memory: int
    leaves: tuple[str, ...]


def cost_card(recipe: Recipe, task: Task, buffers: Arrays) -> CostCard:
    """Ask every part what it would send, upload and keep for one client of this task."""
    layout = task.layout
    one = torch.zeros(1, dtype=torch.long)
    stats = {n: torch.ones(1, dtype=torch.float64) for n in {"examples", *recipe.needs}}
    cohort = Cohort(layout, one, stats, layout.zeros(), population=1)
    briefs = recipe.brief(recipe.init(layout, 1), cohort)
    memory = recipe.enroll(task, buffers)
    uploads = {}
    for name, part in recipe.locals().items():
        told = {n: v[0] for n, v in briefs[name].items()}
        common = task, SGD(), layout.zeros(), buffers, told, memory[name]
        turn = Turn(*common, {n: v[0] for n, v in stats.items()}, lr=1.0, steps=1, trained=buffers)
        uploads[name] = part.report(layout.zeros(), turn)[1]
    model = layout.size * layout.zeros().element_size() + _bytes(buffers)
    measured = sorted(recipe.needs & REVEALED.keys())
    leaves = ["its trained model", "its number of examples", *(REVEALED[n] for n in measured)]
    leaves += [f"{n} of {type(p).__name__}" for part, p in recipe.locals().items() for n in uploads[part]]
    up = model + _bytes(uploads) + 8 * (1 + len(measured))
    return CostCard(model, model + _bytes(briefs), up, _bytes(memory), tuple(leaves))


def _bytes(tree: Mapping[str, object]) -> int:
    return sum(v.numel() * v.element_size() for v in tree_leaves(tree))
