"""Faults on purpose: clients that drop out, straggle, come too late, break or attack, drawn from the seed alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from fedstrata.clients import Clients, Schedule
from fedstrata.errors import DataError, check
from fedstrata.rng import rng
from fedstrata.values import Value


@final
@dataclass(frozen=True)
class Faults(Value):
    """What goes wrong on purpose, the same in every run of the same seed, whoever computes it.

    The first five are chances of each client in each round. The attacks are shares of the clients, drawn once for the
    whole run, and no client has two. Who drops out does nothing else; of late, nan, garbage and an attack, a client
    suffers the first. A spoiled update is sent in place of the true one; what a part uploads besides stays true.
    """

    dropout: float = 0.0  # never answers
    straggle: float = 0.0  # makes only this share of its local steps, one at least:
    straggle_share: float = 0.5
    late: float = 0.0  # trains and remembers, but the reply comes when the round is closed
    nan: float = 0.0  # returns NaN, and forgets what it did in this round
    garbage: float = 0.0  # returns Gaussian numbers as large as the model's
    sign_flip: float = 0.0  # returns minus its update
    scale: float = 0.0  # returns its update times this:
    scale_by: float = 10.0
    label_flip: float = 0.0  # trains on the labels C - 1 - y

    @property
    def chances(self) -> dict[str, float]:
        """What strikes a client anew in every round."""
        reply = {"late": self.late, "nan": self.nan, "garbage": self.garbage}
        return {"dropout": self.dropout, "straggle": self.straggle} | reply

    @property
    def attacks(self) -> dict[str, float]:
        """What some clients do in every round of a run."""
        return {"sign_flip": self.sign_flip, "scale": self.scale, "label_flip": self.label_flip}

    def validate(self) -> None:
        for name, chance in self.chances.items():
            check(0 <= chance <= 1, f"Faults.{name} must be a chance in [0, 1]; got {chance}")
        for name, share in self.attacks.items():
            check(0 <= share <= 1, f"Faults.{name} must be a share of the clients in [0, 1]; got {share}")
        share, total = self.straggle_share, sum(self.attacks.values())
        check(0 < share <= 1, f"Faults.straggle_share must be in (0, 1]; got {share}")
        check(total < 1 + 1e-9, f"sign_flip, scale and label_flip add up to {total:g} of the clients; 1 is all of them")


@dataclass(frozen=True)
class Fates:
    """What strikes whom in a run."""

    faults: Faults
    seed: int
    attackers: Mapping[int, str]  # the attack of each, by client

    @classmethod
    def of(cls, faults: Faults, seed: int, sizes: np.ndarray) -> "Fates":
        """With attackers drawn from the clients that have examples."""
        pool = rng(seed, "attackers").permutation(np.flatnonzero(sizes)).tolist()
        attackers: dict[int, str] = {}
        for attack, share in faults.attacks.items():
            begin = len(attackers)
            attackers |= dict.fromkeys(pool[begin : begin + round(share * len(pool))], attack)
        return cls(faults, seed, attackers)

    def at(self, number: int, client: int) -> tuple[str, ...]:
        """What strikes a client in a round, if it is picked."""
        chances = self.faults.chances
        drawn = rng(self.seed, "faults", number, client).random(len(chances))
        struck = [n for n, u in zip(chances, drawn, strict=True) if u < chances[n]]
        if "dropout" in struck:
            return ("dropout",)
        slow = tuple(n for n in struck if n == "straggle")
        reply = next((n for n in struck if n != "straggle"), self.attackers.get(client))
        return slow if reply is None else (*slow, reply)

    def struck(self, fault: str, number: int, ids: Sequence[int]) -> np.ndarray:
        """Which of these clients it strikes in a round, [K]."""
        return np.array([fault in self.at(number, i) for i in ids], dtype=bool)

    def told(self, number: int, ids: Sequence[int]) -> dict[str, list[int]]:
        """The clients of a cohort that each fault strikes, for the record."""
        fates = {i: self.at(number, i) for i in ids}
        told = {fault: [i for i in ids if fault in fates[i]] for fault in self.faults.chances | self.faults.attacks}
        return {fault: struck for fault, struck in told.items() if struck}

    def shortened(self, schedule: Schedule, ids: Sequence[int], number: int) -> Schedule:
        """The batches of these clients, of which stragglers have only the first ones."""
        all_of_them = schedule.steps
        some = np.maximum(1, np.rint(self.faults.straggle_share * all_of_them)).astype(int).clip(max=all_of_them)
        return schedule.first(np.where(self.struck("straggle", number, ids), some, all_of_them))

    def spoil(self, delta: Tensor, start: Tensor, ids: Sequence[int], number: int) -> None:
        """Turn these clients' updates, [K, P], into what they send, in place."""
        for row, i in zip(delta, ids, strict=True):
            fate = self.at(number, i)
            if "nan" in fate:
                row.fill_(torch.nan)
            elif "garbage" in fate:
                row.copy_(self._garbage(start, number, i))
            elif "sign_flip" in fate:
                row.neg_()
            elif "scale" in fate:
                row.mul_(self.faults.scale_by)

    def poisoned(self, clients: Clients) -> Clients:
        """The same clients, those that flip labels with flipped ones."""
        flippers = [i for i, attack in self.attackers.items() if attack == "label_flip"]
        if not flippers:
            return clients
        if clients.y.is_floating_point():
            raise DataError("Faults.label_flip needs class labels, and the targets are numbers; use sign_flip or scale")
        theirs = np.concatenate([clients.rows[i] for i in flippers])
        if (np.bincount(clients.rows.flat)[theirs] > 1).any():
            raise DataError("Faults.label_flip needs examples that have one client each; some have several")
        y, rows = clients.y.clone(), torch.from_numpy(theirs).to(clients.y.device)
        y[rows] = clients.y.max() - y[rows]
        return replace(clients, y=y)

    def _garbage(self, start: Tensor, number: int, client: int) -> Tensor:
        size = float(start.double().square().mean().sqrt()) or 1.0  # of a model that is all zero
        return torch.from_numpy(rng(self.seed, "garbage", number, client).standard_normal(len(start))) * size
