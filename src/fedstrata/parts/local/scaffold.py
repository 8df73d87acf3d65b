"""SCAFFOLD: control variates undo the drift of each client."""

from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor

from fedstrata.core import Local, Round
from fedstrata.errors import DataError, NeedError


@final
@dataclass(frozen=True)
class Scaffold(Local):
    """SCAFFOLD (Karimireddy et al. 2020, Alg. 1): step along g - c_k + c.

    c_k' = c_k - c + (w^t - w_k) / (steps lr),   c' = c + 1/N sum_k (c_k' - c_k)

    That is option II; option = 1 takes the gradient of all of the client's data at w^t for c_k', a pass more.
    """

    option: Literal[1, 2] = 2
    elementwise = True
    vectors = ("dc",)

    @property
    def needs(self):
        return frozenset({"gradient"}) if self.option == 1 else frozenset()

    @property
    def private(self):
        return self.needs

    @property
    def additive(self):
        return True  # of the uploads, their sum

    @property
    def means(self):
        return frozenset({"c"})

    def init(self, layout, population):
        return {"c": layout.zeros()}

    def enroll(self, task, buffers):
        return {"c_k": task.layout.zeros()}

    def brief(self, state, cohort):
        return {"c": state["c"].expand(len(cohort), -1)}

    def correct(self, grad, w, turn):
        return grad - turn.memory["c_k"] + turn.brief["c"]  # Eq. 3

    def report(self, w, turn):
        if self.option == 1:
            c_k = turn.stats["gradient"]  # Eq. 4, option I
        else:
            seen = (turn.began - w) / (turn.steps * turn.lr)  # the mean gradient of this turn
            c_k = turn.memory["c_k"] - turn.brief["c"] + seen  # Eq. 4, option II
        return {"c_k": c_k}, {"dc": c_k - turn.memory["c_k"]}

    def absorb(self, state, proposal, round):
        dc = round.uploads["dc"] if "dc" in round.uploads else self._change(state["c"], round)
        return proposal, {"c": state["c"] + dc.sum(0) / round.cohort.population}  # Eq. 5

    def _change(self, c: Tensor, round: Round) -> Tensor:
        """c_k' - c_k from what the server sees, for clients that upload nothing: their steps and their rate."""
        steps = round.cohort.stats.get("steps")
        if self.option == 1 or steps is None or round.lr is None or "clients" in round.cohort.stats:
            or_else = "" if self.option == 1 else ", or its steps and the learning rate"
            raise NeedError(f"Scaffold needs each client's upload 'dc'{or_else}")
        if bool((none := steps <= 0).any()):
            client = int(round.cohort.ids[none][0])
            raise DataError(f"Scaffold divides by a client's steps, and client {client} took none; leave its reply out")
        return -c - round.delta / (steps * round.lr).to(c.dtype)[:, None]  # Eq. 4, option II
