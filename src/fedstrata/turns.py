"""What each side of a round sees: a client its turn, the server its cohort, and the round once that has replied."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from fedstrata.buffers import Buffers
from fedstrata.layout import Arrays, Layout
from fedstrata.proxy import Proxy
from fedstrata.task import Task
from fedstrata.updates import Updates

if TYPE_CHECKING:
    from fedstrata.optim import Rate, Training


@dataclass(frozen=True)
class Cohort:
    """The clients of this round and what the server last heard of each."""

    layout: Layout
    ids: Tensor  # [K] in rising order
    stats: Arrays  # last heard: "examples" [K], "labels" [K, C], "loss_variance" [K], ...
    model: Tensor  # [P] the global model they receive
    population: int
    number: int = 0  # of the round, from 0
    mean_examples: float = 1.0  # over all N clients, n / N

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Turn:
    """One client's turn in a round. No client axis: stacking adds it."""

    task: Task
    training: "Training"
    start: Tensor  # [P] the global model it received
    buffers: Arrays  # the global buffers it received
    brief: Arrays  # what the server's half of this part sent
    memory: Arrays  # what this part kept on this client
    stats: Arrays  # this client's own measurements, taken at `start`
    lr: "Rate"  # of this round
    began: Tensor  # [P] where its training began: `start`, unless a part's `begin` says otherwise
    steps: Tensor | int = 0  # local steps taken, known once training ends
    trained: Arrays = field(default_factory=dict)  # the client's own buffers, known once training ends


@dataclass(frozen=True)
class Round:
    """What the server holds once the cohort has replied."""

    cohort: Cohort
    delta: Tensor  # [K, P] local minus global: the one sign convention of the library
    uploads: Arrays = field(default_factory=dict)  # this part's uploads, each [K, ...]
    proxy: Proxy | None = None
    training: "Training | None" = None  # how the clients trained, where that is known
    lr: float | None = None  # of their steps
    buffers: Buffers = field(default_factory=Buffers)
    seed: int = 0  # of the run, for parts that draw
    notes: Arrays = field(default_factory=dict)  # diagnostics for the report, never read by an algorithm
    seen: Updates | None = None  # what was worked out of these updates already

    @property
    def updates(self) -> Updates:
        """The updates by their norms, angles and distances: whatever several parts ask is worked out once."""
        cohort, seen = self.cohort, self.seen
        examples = cohort.stats["examples"]
        if seen is None or not (seen.delta is self.delta and seen.old is cohort.model and seen.examples is examples):
            seen = Updates(cohort.layout, self.delta, cohort.model, examples, examples)
            object.__setattr__(self, "seen", seen)
        return seen

    @property
    def layout(self) -> Layout:
        """Where the layers are."""
        return self.cohort.layout

    @property
    def old(self) -> Tensor:
        """The global model that the cohort started from, [P]."""
        return self.cohort.model

    @property
    def share(self) -> Tensor:
        """p_k = n_k / n over the cohort, [K], in float64."""
        return self.updates.share

    def note(self, **values: Tensor) -> None:
        """Keep diagnostics for the report: copies, as the memory of a round may serve the next."""
        self.notes.update({name: v.detach().clone() for name, v in values.items()})
