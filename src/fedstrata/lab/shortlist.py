"""Which methods suit which kind of heterogeneity, and why."""

from dataclasses import dataclass

from fedstrata.lab.skew import Skew

FIRST = "fedavg"
"""What every other has to beat."""


@dataclass(frozen=True)
class Candidate:
    """A method, and why it is tried here."""

    method: str
    reason: str


BY_KIND: dict[str, tuple[Candidate, ...]] = {
    "label": (
        Candidate("scaffold", "it undoes the drift of clients that see few classes"),
        Candidate("feddisco", "it counts clients less whose labels are far from the whole"),
        Candidate("fedlws", "it shrinks the layers in which clients disagree"),
        Candidate("fedlayerwise", "it weighs clients in each layer by how they agree"),
        Candidate("fedprox", "it holds clients near the common model"),
    ),
    "size": (
        Candidate("fednova", "clients with more examples take more steps, which it undoes"),
        Candidate("fedavg(weighting='uniform')", "it keeps a few large clients from deciding alone"),
    ),
    "feature": (
        Candidate("fedadp", "it weighs clients by how their updates agree"),
        Candidate("fedlws", "it shrinks the layers in which clients disagree"),
        Candidate("scaffold", "it undoes the drift of clients whose inputs look different"),
    ),
}
"""By the kinds of `Skew`, the likeliest first. None needs data on the server or a certain model."""

ANYWAY = (
    Candidate("scaffold", "it undoes drift of any kind, should clients differ in a way that was not seen"),
    Candidate("fedprox", "it holds clients near the common model, should they differ in a way that was not seen"),
)
"""What is tried where nothing is skewed."""

MOST = 6
"""Challengers at most."""


def shortlist(skew: Skew) -> list[Candidate]:
    """FedAvg, and who might beat it on such a split: the likeliest of each kind in turn, each method once."""
    columns = [BY_KIND[kind] for kind in skew.kinds] or [ANYWAY]
    longest = max(map(len, columns))
    turns = [column[i] for i in range(longest) for column in columns if i < len(column)]
    found = {c.method: c for c in reversed(turns)}  # the first reason stays
    order = dict.fromkeys(c.method for c in turns)
    return [Candidate(FIRST, "the plain average: what every other has to beat"), *(found[m] for m in order)][: MOST + 1]
