"""FedLWS as its published code has it, which differs from the paper in four points."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedstrata.core import Step
from fedstrata.errors import check
from fedstrata.layout import Arrays, Layout


@final
@dataclass(frozen=True)
class OfficialLWS(Step):
    """The published code of FedLWS (D-10): w <- gamma w, gamma = |w^t| / (|w^t| + clip(beta tau) |w - w^t|), in groups.

    A group ends after every name of the state_dict that contains "bias"; of a transformer, whose layers are called
    blocks.0, blocks.1, ..., every block is one group, the first with the embedding before it. Running statistics and
    counters are inside the groups and their norms, and are multiplied by gamma too. beta tau is clipped to [low, high],
    so that beta = 0 is not FedAvg and a single client still shrinks. Frozen parameters are outside. To reproduce that
    code, for nothing else.
    """

    beta: float = 0.03
    low: float = 0.01
    high: float = 0.2
    slot = "shrink"

    def validate(self):
        check(self.beta >= 0, f"OfficialLWS.beta must not be negative; got {self.beta}")
        check(0 <= self.low <= self.high, f"OfficialLWS needs 0 <= low <= high; got {self.low} and {self.high}")

    @property
    def looks(self):
        return frozenset({"apart"})

    def init(self, layout, population):
        return {"gamma": layout.at("model").full(1.0).expand(max(groups(layout).values()) + 1).clone()}

    def step(self, state, proposal, round):
        layout = round.layout.at("tensor")
        size = _within(layout, round.updates.size("tensor"), round.buffers.old)  # [G]
        moved = {n: round.buffers.mixed[n].double() - b.double() for n, b in round.buffers.old.items()}
        move = _within(layout, round.updates.move(proposal, "tensor"), moved)
        apart = {n: b.double() - b.double().mean(0) for n, b in round.buffers.clients.items()}
        tau = _within(layout, round.updates.apart("tensor"), apart).mean(0)
        pull = (self.beta * tau).clamp(self.low, self.high)
        gamma = torch.where(size > 0, size / (size + pull * move).clamp_min(1e-300), 1.0)
        round.note(gamma=gamma, tau=tau)
        return round.updates.scale(gamma[_groups_of_tensors(layout, gamma)], proposal, "tensor"), {"gamma": gamma}

    def treat(self, state, buffers, model, round):
        group = groups(round.layout)
        return {n: state["gamma"][group[n]] * b.double() if n in group else b for n, b in buffers.items()}


def _within(layout: Layout, norms: Tensor, buffers: Arrays) -> Tensor:
    """Norms of groups, from those of their tensors [..., T] and from buffers of the same leading axes: [..., G]."""
    group, lead = groups(layout), norms.shape[:-1]
    total = norms.new_zeros(*lead, max(group.values()) + 1)
    total.index_add_(-1, _groups_of_tensors(layout, norms), norms.square())
    for n, b in buffers.items():
        if n in group:  # some are in no state_dict
            finite = b.double().nan_to_num(0, 0, 0)  # a mask may be minus infinity
            total[..., group[n]] += finite.square().reshape(*lead, -1).sum(-1)
    return total.sqrt()


def _groups_of_tensors(layout: Layout, like: Tensor) -> Tensor:
    """The group of each tensor, [T]."""
    group = groups(layout)
    return torch.tensor([group[n] for n, _ in layout.tensors], device=like.device)


def groups(layout: Layout) -> dict[str, int]:
    """The group of every name of the state_dict: one ends after each block, and after them with each "bias"."""
    blocks = [name.split(".")[1] if name.startswith("blocks.") else "" for name in layout.names] + [""]
    behind = max((i + 1 for i, block in enumerate(blocks) if block), default=0)  # all blocks
    found, group = {}, 0
    for i, name in enumerate(layout.names):
        found[name] = group
        group += "bias" in name if i >= behind else blocks[i] not in ("", blocks[i + 1])
    return found
