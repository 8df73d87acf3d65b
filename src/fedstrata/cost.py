"""What a recipe costs and what it reveals, from shapes alone."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
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
    "trained_gradient": "its gradient at the model it trained",
    "steps": "its number of local steps",
    "loss_variance": "the variance of its losses on one mini-batch",
    "gradient_variance": "the variance of its gradients on one mini-batch",
    "last_layer_gradient_variance": "the variance of its last layer's gradients on one mini-batch",
    "class_features": "the number and the sum of its features of each class",
    "class_moments": "the number, the sum and the products of its features of each class",
}
"""What each measurement tells the server about a client."""


@dataclass(frozen=True)
class CostCard:
    """Of one client in one round, in bytes; what it keeps; what is sent once, in the end; and what leaves it."""

    model: int
    down: int
    up: int
    memory: int
    once: int  # both ways
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
        turn = Turn(
            *common, {n: v[0] for n, v in stats.items()}, lr=1.0, began=layout.zeros(), steps=1, trained=buffers
        )
        uploads[name] = part.report(layout.zeros(), turn)[1]
    model = layout.size * layout.zeros().element_size() + _bytes(buffers)
    measured = sorted(recipe.told & REVEALED.keys())
    leaves = ["its trained model", "its number of examples", *(REVEALED[n] for n in measured)]
    leaves += [f"{n} of {type(p).__name__}" for part, p in recipe.locals().items() for n in uploads[part]]
    leaves += [f"once, in the end, {REVEALED[n]}" for part in recipe.finish for n in sorted(part.asks)]
    up = model + _bytes(uploads) + 8 * (1 + sum(_numbers(n, task) for n in measured))
    once = sum(model + 8 * sum(_numbers(n, task) for n in part.asks) for part in recipe.finish)
    return CostCard(model, model + _bytes(briefs), up, _bytes(memory), once, tuple(leaves))


def _numbers(name: str, task: Task) -> int:
    """How many numbers a measurement takes."""
    head = task.train_mode.get_submodule(task.classifier) if task.classifier is not None else None
    classes, d = (head.out_features, head.in_features) if isinstance(head, nn.Linear) else (1, 1)
    return {
        "gradient": task.layout.size,
        "trained_gradient": task.layout.size,
        "labels": classes,
        "class_features": classes * (1 + d),
        "class_moments": classes * (1 + d + d * d),
    }.get(name, 1)


def _bytes(tree: Mapping[str, object]) -> int:
    return sum(v.numel() * v.element_size() for v in tree_leaves(tree))
