"""Cohorts larger than memory: the replies of a few clients become one, and the round closes as with all of them."""

import torch
from torch import Tensor

from fedstrata.buffers import Buffers
from fedstrata.core import Cohort, Recipe
from fedstrata.errors import SettingError
from fedstrata.server import Replies, Server, answered


def merged(recipe: Recipe, server: Server, cohort: Cohort, replies: Replies) -> Replies:
    """One reply that stands for these clients, already screened: the mean of their updates and buffers, the sum of
    their uploads, the mean of their measurements by size, and in `stats` how many "clients" and "examples" it is of.

    Merged replies can be joined, closed over, and merged again. What single clients measured is not kept.
    """
    if recipe.single:
        raise SettingError(
            f"{' and '.join(recipe.single)} must see each client's update by itself, so the updates of all "
            f"{len(cohort)} clients of a round have to fit into memory; choose fewer clients a round"
        )
    some = answered(cohort, replies)
    n, mass = some.stats["examples"].double(), recipe.weigh.mass(some.stats)
    assert mass is not None  # where no part must see single clients, weighing is by masses
    weights, by_size = (_scaled(v) for v in (mass.double(), n))
    updates = recipe.updates(some, replies.delta)
    mean = updates.mix(weights[:, None], "model", keep=torch.zeros_like(weights[:1]))  # [P]
    buffers = Buffers(server.buffers, replies.buffers).mean(weights, n) if replies.buffers else {}
    measured = {name: torch.tensordot(by_size, v.double(), 1)[None] for name, v in replies.stats.items()}
    counted = {"examples": n.sum()[None], "clients": some.stats.get("clients", n > 0).double().sum()[None]}
    return Replies(
        replies.ids[:1],
        mean[None],
        {name: b[None] for name, b in buffers.items()},
        {part: {name: v.sum(0, keepdim=True) for name, v in u.items()} for part, u in replies.uploads.items()},
        measured | counted,
    )


def _scaled(mass: Tensor) -> Tensor:
    """Weights that sum to 1; all zero where nobody counts."""
    return mass / mass.sum().clamp_min(torch.finfo(mass.dtype).tiny)
