"""What becomes of claims, from numbers that are made up."""

from pathlib import Path

import pytest

from fedstrata.reproduce.metrics import measure
from fedstrata.reproduce.plan import Cell, Claim, Reproduction
from fedstrata.reproduce.results import Result
from fedstrata.reproduce.verdict import in_short, judge
from fedstrata.reproduce.words import findings_table, table


def found(row: str, accuracies: list[float]) -> list[Result]:
    return [Result(row, "c", s, "full", "f", 2, {"test": [a / 200, a / 100]}) for s, a in enumerate(accuracies)]


def made(*claims: Claim, metric: str = "last", target: float | None = None) -> Reproduction:
    cells = tuple(Cell(r, ("c",), {}, p) for r, p in (("A", 70.0), ("B", 68.0)))
    return Reproduction("t", Path(), "title", "place", metric, 3, cells, claims, target=target)


BETTER = Claim("A is better", "A", over="B")


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([72, 73, 74], [70, 71, 72.1], "reproduced"),
        ([72, 73, 74], [71, 75, 70], "direction reproduced"),
        ([72], [71], "direction reproduced"),
        ([70, 71, 72], [72, 73, 74.2], "not reproduced"),
        ([70, 70], [70, 70], "not reproduced"),
        ([70, 71], [], "not run"),
    ],
)
def test_better_is_decided_by_the_interval_of_the_paired_difference(a, b, verdict):
    (finding,) = judge(made(BETTER), found("A", a) + found("B", b))
    assert finding.verdict == verdict
    assert finding.published == 2.0


def test_only_seeds_that_both_rows_have_are_compared():
    results = found("A", [72, 73, 74]) + found("B", [70, 71])
    assert judge(made(BETTER), results)[0].seeds == 2


def test_of_rounds_fewer_are_better_and_a_target_never_reached_counts_as_one_more():
    claim, table_ = Claim("A is faster", "A", over="B"), made(BETTER, metric="rounds", target=0.5)
    results = found("A", [80, 82]) + found("B", [45, 40])
    assert measure("rounds", results[0].curves, {}, 0.5) == 2
    assert measure("rounds", results[2].curves, {}, 0.5) == 3
    faster = made(claim, metric="rounds", target=0.5)
    assert judge(faster, results)[0].verdict == "direction reproduced"  # by one round twice, as a coin would have it
    assert judge(faster, found("A", [80] * 5) + found("B", [45] * 5))[0].verdict == "direction reproduced"
    assert judge(faster, found("A", [80] * 6) + found("B", [45] * 6))[0].verdict == "reproduced"
    assert judge(table_, found("A", [45, 40]) + found("B", [80, 82]))[0].verdict == "not reproduced"


def test_where_nobody_reaches_the_target_that_is_said():
    both = made(BETTER, metric="rounds", target=0.9)
    results = found("A", [45, 40]) + found("B", [80, 82])
    assert "| 70 / never (2) |" in table(both, results)
    assert "neither gets there (2)" in findings_table(judge(both, results))
    one = found("A", [45, 40]) + found("B", [95, 82])
    assert "neither" not in findings_table(judge(both, one))
    assert "/ 2.50 ± " in table(both, one)


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (Claim("the number", "A"), "reproduced"),
        (Claim("the number", "A", published=90.0), "not reproduced"),
        (Claim("the number", "A", within=0.5), "not reproduced"),
        (Claim("the number", "A", within=1.5), "reproduced"),
        (Claim("alike", "A", like="B", within=3.0), "reproduced"),
        (Claim("alike", "A", like="B", within=1.0), "not reproduced"),
        (Claim("another metric has no number", "A", metric="best10"), "not run"),
    ],
)
def test_a_number_lies_in_the_interval_or_within_the_tolerance(claim, verdict):
    results = found("A", [70, 71, 72]) + found("B", [68, 69, 70])
    assert judge(made(claim), results)[0].verdict == verdict


def test_the_table_has_both_numbers_and_the_seeds_and_the_findings_in_short():
    results = found("A", [72, 73, 74]) + found("B", [70])
    said = table(made(BETTER), results)
    assert "| A | 70 / 73.00 ± 2.48 (3) |" in said
    assert "| B | 68 / 70.00 (1) |" in said
    findings = judge(made(BETTER), results)
    assert "| A is better | c | +2.00 | +2.00 (1) | direction reproduced |" in findings_table(findings)
    assert in_short(findings) == "1 direction reproduced"
    assert "not run" in table(made(BETTER), [])
