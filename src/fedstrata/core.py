"""The vocabulary of a federated algorithm: the five types of parts, and the recipe; `turns` has what each side sees.

Client hooks see one client (`turn`); server hooks see the cohort (`round`). Server hooks return (result, new state);
client hooks return (memory, upload); nothing is remembered anywhere else. A part makes new tensors only from tensors
or the layout that it was given, so that device and type follow by themselves.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, final

import numpy as np
from torch import Tensor, nn

from fedstrata.errors import REMEDIES, NeedError
from fedstrata.hooks import moved, named, pair, positions, rows, shaped, telling
from fedstrata.layout import Arrays, Grain, Layout, State
from fedstrata.proxy import Proxy
from fedstrata.task import Batch, Task
from fedstrata.turns import Cohort, Round, Turn
from fedstrata.updates import Updates
from fedstrata.values import Value

if TYPE_CHECKING:
    from fedstrata.optim import Training

__all__ = [
    "Cohort", "Finish", "Local", "Part", "Proxy", "Recipe", "Round", "Select", "State", "Step", "Turn", "Weigh",
]  # fmt: skip


class Part(Value):
    """A frozen dataclass of hyper-parameters; its state lives outside it."""

    slot: ClassVar[str]  # of a recipe: "select", "local", "weigh", "server", "shrink" or "finish"

    @property
    def needs(self) -> frozenset[str]:
        """What it cannot do without: "proxy", "features", "labels", "steps", or a probe's name."""
        return frozenset()

    @property
    def private(self) -> frozenset[str]:
        """Which of these needs the client alone looks at: they never leave it."""
        return frozenset()

    @property
    def asks(self) -> frozenset[str]:
        """Probes that must be answered beforehand: by every client for a selection, by the cohort for a brief."""
        return frozenset()

    @property
    def looks(self) -> frozenset[str]:
        """What its server half asks of the updates, so that one pass does for all parts: see `Updates`. A hint."""
        return frozenset()

    @property
    def additive(self) -> bool:
        """Whether its server half needs no more than sums over clients: the proposal, summed uploads, means by size."""
        return False

    @property
    def means(self) -> frozenset[str]:
        """Which of its state are means over all N clients, those who never took part counting as zero."""
        return frozenset()

    def init(self, layout: Layout, population: int) -> Arrays:
        """The server's state before the first round."""
        return {}

    def treat(self, state: Arrays, buffers: Arrays, model: Tensor, round: "Round") -> Arrays:
        """Server: the mixed buffers, in float64, once the new model is known; most parts leave them alone."""
        return buffers

    def shown(self, state: Arrays, model: Tensor) -> Tensor:
        """The model that is evaluated and handed out, [P]: the global one, unless the method reports another."""
        return model


class Select(Part):
    """Who takes part."""

    slot = "select"

    @property
    def additive(self) -> bool:
        return True  # it acts before anybody replies

    @abstractmethod
    def pick(self, state: Arrays, stats: Arrays, rng: np.random.Generator) -> tuple[Tensor, Arrays]:
        """(positions of the chosen among the clients that have data, new state)."""

    def size(self, population: int) -> int:
        """About how many it picks of so many clients."""
        return population


class Local(Part):
    """What a client minimises, with both ends of whatever that takes. Every hook is optional."""

    slot = "local"
    elementwise: ClassVar[bool] = False  # `correct` takes each number by itself: it works as it is on stacked clients
    vectors: ClassVar[tuple[str, ...]] = ()  # which of its uploads have one number a parameter, [P]

    @property
    def pull(self) -> float | None:
        """mu, where all that `correct` does is to add mu (w - start); such steps can be compiled."""
        return None

    @property
    def additive(self) -> bool:  # if it has no server half
        return all(getattr(type(self), hook) is getattr(Local, hook) for hook in ("absorb", "settle", "treat"))

    def adapt_model(self, model: nn.Module, seed: int) -> nn.Module:
        """Both ends, before anything: the model that is trained, a changed copy where the method asks for one."""
        return model

    def adapt_training(self, training: "Training") -> "Training":
        """Both ends, before anything: how clients train."""
        return training

    def enroll(self, task: Task, buffers: Arrays) -> Arrays:
        """Client: its memory before its first turn."""
        return {}

    def brief(self, state: Arrays, cohort: Cohort) -> Arrays:
        """Server: what to send with the model, each entry [K, ...]."""
        return {}

    def begin(self, w: Tensor, turn: Turn) -> Tensor:
        """Client: where its training starts, [P]; the global model unless it kept some of its own."""
        return w

    def outputs(self, outputs: Tensor, turn: Turn) -> Tensor:
        """Client: applied to the model's outputs before the loss."""
        return outputs

    def penalty(self, w: Tensor, turn: Turn, batch: Batch) -> Tensor | float:
        """Client: added to the loss, for terms that look at the data."""
        return 0.0

    def correct(self, grad: Tensor, w: Tensor, turn: Turn) -> Tensor:
        """Client: applied to the gradient, for terms with a closed form."""
        return grad

    def report(self, w: Tensor, turn: Turn) -> tuple[Arrays, Arrays]:
        """Client, after training: (new memory, upload)."""
        return turn.memory, {}

    def absorb(self, state: Arrays, proposal: Tensor, round: Round) -> tuple[Tensor, Arrays]:
        """Server: (proposal, new state), right after weighing."""
        return proposal, state

    def settle(self, state: Arrays, model: Tensor, round: Round) -> Arrays:
        """Server: the state once the new global model is known, after the server and shrink steps."""
        return state


class Weigh(Part):
    """How the cohort becomes one proposal: weights per client, or per client and layer."""

    slot = "weigh"
    of: ClassVar[Literal["delta", "model"]] = "delta"  # what the weights multiply; the same when they sum to 1
    grain: Grain = "model"

    @property
    def additive(self) -> bool:
        return type(self).mass is not Weigh.mass

    @abstractmethod
    def weights(self, state: Arrays, round: Round) -> tuple[Tensor, Arrays]:
        """([K, L] at this part's grain, new state)."""

    def mass(self, stats: Arrays) -> Tensor | None:
        """What each client counts before all is scaled to sum 1, [K], where only itself decides that."""
        return None

    def mix(self, weights: Tensor, round: Round) -> Tensor:
        """The proposal, [P]."""
        return round.updates.mix(weights, self.grain, None if self.of == "delta" else weights.sum(0))

    def buffer_weights(self, weights: Tensor, round: Round) -> Tensor:
        """The weights of the clients' buffers, [K]: the part's own if it has one a client, else p_k."""
        return weights[:, 0] if self.grain == "model" else round.share


class Step(Part):
    """Moves the proposal. Server optimisers and shrinking are both steps; shrinking says slot = "shrink"."""

    slot = "server"

    @abstractmethod
    def step(self, state: Arrays, proposal: Tensor, round: Round) -> tuple[Tensor, Arrays]:
        """(proposal [P], new state)."""


class Finish(Part):
    """Changes the model once, after the last round, from what every client measures at it."""

    slot = "finish"

    @property
    def additive(self) -> bool:
        return True  # it acts after the last round

    @abstractmethod
    def finish(self, model: Tensor, buffers: Arrays, stats: Arrays, task: Task, rng: np.random.Generator) -> Tensor:
        """The model that is handed out, [P]; `stats` has what was asked for, [N, ...]."""


@final
@dataclass(frozen=True)
class Recipe(Value):
    """A federated algorithm: parts in the order in which they act.

    On the server: weigh -> local.absorb -> server -> shrink -> local.settle. A part's own state is thus computed from
    unshrunk values, except in `settle`, which sees the model that the next round starts from. What is in `finish`
    acts once, after the last round.
    """

    select: Select
    weigh: Weigh
    local: tuple[Local, ...] = ()
    server: tuple[Step, ...] = ()
    shrink: tuple[Step, ...] = ()
    finish: tuple[Finish, ...] = ()

    def parts(self) -> dict[str, Part]:
        """Every part by its name: "select", "weigh", "local.0", ..., "server.0", ..., "shrink.0", ..., "finish.0"."""
        slots = ("local", "server", "shrink", "finish")
        many = {f"{slot}.{i}": p for slot in slots for i, p in enumerate(getattr(self, slot))}
        return {"select": self.select, "weigh": self.weigh} | many

    @cached_property
    def looks(self) -> frozenset[str]:
        """What its parts ask of the updates."""
        return frozenset().union(*(p.looks for p in self.parts().values()))

    @cached_property
    def treats(self) -> bool:
        """Whether a part does more to the clients' buffers than to take their mean."""
        return any(type(p).treat is not Part.treat for p in self.parts().values())

    def locals(self) -> dict[str, Local]:
        """The parts with a client half, by name."""
        return {f"local.{i}": p for i, p in enumerate(self.local)}

    @property
    def needs(self) -> frozenset[str]:
        """What its parts cannot do without."""
        return frozenset().union(*(p.needs for p in self.parts().values()))

    @property
    def single(self) -> tuple[str, ...]:
        """Those of its parts that must see each client's update by itself: without any, replies can be merged."""
        return tuple(dict.fromkeys(type(p).__name__ for p in self.parts().values() if not p.additive))

    @property
    def told(self) -> frozenset[str]:
        """Those of its needs that the server is told about."""
        return frozenset().union(*(p.needs - p.private for p in self.parts().values()))

    @property
    def briefing(self) -> frozenset[str]:
        """Probes that the cohort answers before its briefs are written."""
        return frozenset().union(*(p.asks for p in self.local))

    def check(self, have: frozenset[str]) -> None:
        """Raise a NeedError about the first need that is not among what we have."""
        for part in self.parts().values():
            for need in sorted(part.needs - have):
                remedy = REMEDIES.get(need, f"the measurement {need!r}, which no probe provides")
                raise NeedError(f"{type(part).__name__} needs {remedy}")

    @telling("before the first round")
    def init(self, layout: Layout, population: int) -> State:
        """The server's state before the first round."""
        return {name: p.init(layout, population) for name, p in self.parts().items()}

    def joined(self, state: State, share: float) -> State:
        """The state once clients have joined, of whom those before are this share: means over all count them in."""
        means = {name: {n: state[name][n] * share for n in part.means} for name, part in self.parts().items()}
        return {name: own | means.get(name, {}) for name, own in state.items()}

    @telling("before the first round")
    def adapt(self, model: nn.Module, training: "Training", seed: int) -> tuple[nn.Module, "Training"]:
        """The model and the local training as the local parts want them."""
        for part in self.local:
            model, training = part.adapt_model(model, seed), part.adapt_training(training)
        return model, training

    @telling("before the first round")
    def enroll(self, task: Task, buffers: Arrays) -> State:
        """A client's memory before its first turn."""
        return {name: p.enroll(task, buffers) for name, p in self.locals().items()}

    def pick(self, state: State, stats: Arrays, rng: np.random.Generator, number: int = 0) -> tuple[Tensor, State]:
        """(positions of the chosen among the clients that have data, new state)."""
        with telling(f"round {number}"):
            said = self.select.pick(state["select"], stats, rng)
            chosen, own = pair(self.select, "pick", said, "(positions, state)")
            return positions(self.select, chosen, len(stats["examples"])), state | {"select": own}

    def brief(self, state: State, cohort: Cohort) -> State:
        """What the server sends along with the model, each entry [K, ...]."""
        with telling(f"round {cohort.number}"):
            said = {name: p.brief(state[name], cohort) for name, p in self.locals().items()}
            return {name: rows(p, "brief", said[name], len(cohort)) for name, p in self.locals().items()}

    def updates(self, cohort: Cohort, delta: Tensor) -> Updates:
        """The cohort's updates, with what its parts will ask of them."""
        examples, mass = cohort.stats["examples"], self.weigh.mass(cohort.stats)
        return Updates(cohort.layout, delta, cohort.model, examples, examples if mass is None else mass, self.looks)

    def aggregate(self, state: State, round: Round, uploads: State) -> tuple[Tensor, Arrays, State]:
        """From the cohort's replies to (the next global model [P], its buffers, new state)."""
        with telling(f"round {round.cohort.number}"):
            return self._aggregated(state, round, uploads)

    def _aggregated(self, state: State, round: Round, uploads: State) -> tuple[Tensor, Arrays, State]:
        state, parts = dict(state), self.parts()
        round = replace(round, uploads={}, seen=round.seen or self.updates(round.cohort, round.delta))
        weights, state["weigh"] = self._weights(state["weigh"], round)
        round.note(weights=weights)
        by = self.weigh.buffer_weights(weights, round), round.cohort.stats["examples"]
        if self.treats or round.proxy is not None:  # who look at the mixed buffers
            round = replace(round, buffers=round.buffers.mix(*by))
        if round.proxy is not None:
            round = replace(round, proxy=replace(round.proxy, buffers=round.buffers.settled(round.buffers.mixed)))
        w = self.weigh.mix(weights, round)
        rounds = {name: replace(round, uploads=own) if (own := uploads.get(name)) else round for name in state}
        for name, part in parts.items():
            if isinstance(part, Local):
                w, state[name] = moved(part, "absorb", part.absorb(state[name], w, rounds[name]), w)
            elif isinstance(part, Step):
                w, state[name] = moved(part, "step", part.step(state[name], w, rounds[name]), w)
        for name, part in self.locals().items():
            state[name] = named(part, "settle", part.settle(state[name], w, rounds[name]))
        return w, self._treated(w, rounds, state) if self.treats else round.buffers.mean(*by, rounded=True), state

    def _weights(self, state: Arrays, round: Round) -> tuple[Tensor, Arrays]:
        """([K, L] at the grain of the weighing part, its new state)."""
        part = self.weigh
        weights, state = pair(part, "weights", part.weights(state, round), "(weights, state)")
        shape = len(round.delta), round.layout.at(part.grain).depth
        return shaped(part, "weights", weights, shape, "a tensor [K, L]", f" at the grain {part.grain!r}"), state

    def _treated(self, w: Tensor, rounds: dict[str, Round], state: State) -> Arrays:
        """The mixed buffers, as the parts want them."""
        buffers = rounds["weigh"].buffers
        values = buffers.mixed
        for name, part in self.parts().items():
            values = part.treat(state[name], values, w, rounds[name])
        return buffers.settled(values)

    @telling("showing the model")
    def shown(self, state: State, model: Tensor) -> Tensor:
        """The model that is evaluated and handed out, [P]."""
        for name, part in self.parts().items():
            model = part.shown(state[name], model)
        return model
