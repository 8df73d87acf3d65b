"""Tables whose numbers are not those of runs: what measures them, by the name in reproduction.toml."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedstrata.reproduce.aggregation import aggregation
from fedstrata.reproduce.distances import distances
from fedstrata.reproduce.plan import Cell, Reproduction
from fedstrata.reproduce.results import Result

Kind = Callable[[Reproduction, Sequence[tuple[Cell, int]], dict[str, Any]], Iterator[Result]]
"""(the table, the cells and seeds that are missing, the means) -> their results, one after another."""

KINDS: dict[str, Kind] = {"aggregation": aggregation, "distances": distances}
