"""A run's rounds as a few numbers."""

import numpy as np
import pytest

from fedstrata.cost import CostCard
from fedstrata.experiment import Experiment
from fedstrata.lab.measure import card_of, columns, judged_by, measured, rounds_to, tail_length

CARD = CostCard(model=100, down=150, up=110, memory=0, once=1000, leaves=())


def line(number: int, accuracy: float | None, worst: float = 0.1) -> dict:
    scored = {"test": {"accuracy": accuracy}, "clients": {"worst10": worst}} if accuracy is not None else {}
    return {"round": number, "cohort": [0, 1, 2], "seconds": 0.5} | scored


def test_a_run_in_numbers_worked_by_hand():
    told = [0.1 * (i % 4) for i in range(24)]
    found = measured([line(i, a, worst=a / 2) for i, a in enumerate(told)], CARD)
    assert found == {
        "last": pytest.approx(0.3),
        "best": pytest.approx(0.3),
        "tail": pytest.approx(np.mean(told[-10:])),
        "worst10": pytest.approx(0.15),
        "oscillation": pytest.approx(np.std(told[-10:])),
        "bytes": 24 * 3 * 260,
        "seconds": 12.0,
    }


def test_the_tail_is_ten_rounds_or_the_second_half_of_a_short_run():
    assert [tail_length(n) for n in (1, 3, 10, 19, 20, 500)] == [1, 2, 5, 10, 10, 10]


def test_only_rounds_that_were_evaluated_count():
    rounds = [line(0, None), line(1, 0.5), line(2, None), line(3, 0.7)]
    assert measured(rounds, CARD)["tail"] == 0.7
    assert rounds_to(rounds, 0.5) == 2
    assert rounds_to(rounds, 0.6) == 4
    assert rounds_to(rounds, 0.8) is None
    assert measured(rounds, CARD)["bytes"] == 4 * 3 * 260


def test_what_is_done_once_in_the_end_is_the_last_model_and_in_no_mean_of_rounds():
    rounds = [line(i, 0.5) for i in range(4)] + [line(4, 0.9) | {"finish": True}]
    found = measured(rounds, CARD)
    assert (found["last"], found["tail"], found["best"]) == (0.9, 0.5, 0.9)
    assert found["oscillation"] == 0
    assert found["bytes"] == 4 * 3 * 260 + 3 * 1000
    assert rounds_to(rounds, 0.8) is None
    assert judged_by([rounds[:4], rounds]) == "last"
    assert judged_by([rounds[:4]]) == "tail"


def test_columns_say_how_many_rounds_are_averaged():
    titles = {c.key: c.title for c in columns(None, {3})}
    assert (titles["tail"], titles["oscillation"]) == ("accuracy, mean of the last 3", "oscillation, last 3")
    assert {c.key: c.title for c in columns(None, {3, 10})}["tail"] == "accuracy, mean of the last rounds"


def test_what_leaves_a_client_once_is_counted():
    digits = Experiment.of({"method": "ccvr", "model": "mlp200"})
    plain = Experiment.of({"method": "fedavg", "model": "mlp200"})
    data = digits.dataset()
    card, usual = card_of(digits, data), card_of(plain, data)
    width = 200  # of what the classifier sees
    assert usual.once == 0
    assert card.once == card.model + 8 * 10 * (1 + width + width**2)
    assert (card.down, card.up) == (usual.down, usual.up)


def test_a_client_of_scaffold_sends_twice_the_model():
    exp = Experiment.of({"method": "scaffold", "model": "logreg"})
    card = card_of(exp, exp.dataset())
    assert (card.down, card.up) == (2 * 2600, 2 * 2600 + 8)
