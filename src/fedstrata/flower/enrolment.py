"""What a node says of itself when it comes in; at both ends, typed here and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any, final

import torch

from fedstrata.errors import FedstrataError, check
from fedstrata.flower.quarantine import CUT, Refused
from fedstrata.values import Value
from fedstrata.version import __version__

MOST_CLASSES = 1_000_000

MOST_NUMBERS = 10_000_000
"""In one example."""


@final
@dataclass(frozen=True)
class Enrolment(Value):
    """Who is there, and what its data looks like."""

    name: str  # of the client
    partition: int | None  # which part of the experiment's data it has
    examples: int
    shape: tuple[int, ...]  # of one example
    words: bool  # whether examples are numbers of words
    classes: int
    names: tuple[str, ...] | None  # of the classes
    columns: tuple[str, ...]  # the names of its features, where a table gives them
    fedstrata: str = __version__
    torch: str = str(torch.__version__)

    @classmethod
    def called(cls, name: str) -> str:
        return f"its {name}"

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "Enrolment":
        """From the facts of a reply; Refused says what is wrong with them."""
        version = said.get("fedstrata")
        if not isinstance(version, str) or version.split(".")[:2] != __version__.split(".")[:2]:
            raise Refused(f"it has fedstrata {CUT.repr(version)} and the server {__version__}; install the same")
        if missing := [f.name for f in fields(cls) if f.name not in said]:
            raise Refused(f"it does not say its {missing[0]}")
        try:
            return cls(**{f.name: said[f.name] for f in fields(cls)})
        except FedstrataError as e:
            raise Refused(str(e)) from None

    def validate(self) -> None:
        fine = bool(self.name.strip()) and self.name.isprintable()
        check(
            fine, f"its name is {CUT.repr(self.name)}; give it one that can be printed, client=... in its node-config"
        )
        check(1 <= self.classes <= MOST_CLASSES, f"its number of classes is {self.classes}")
        named = self.names is None or len(self.names) == self.classes
        check(named, f"it has names for {len(self.names or ())} of {self.classes} classes")
        fits = all(n >= 1 for n in self.shape) and prod(self.shape) <= MOST_NUMBERS
        check(len(self.columns) <= max(1, prod(self.shape)), f"it has {len(self.columns)} names for its columns")
        check(fits, f"the shape of its examples is {CUT.repr(list(self.shape))}, of 1 to {MOST_NUMBERS:,} numbers")
