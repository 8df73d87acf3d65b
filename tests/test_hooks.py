"""What hooks of parts gave that they must not, or failed with, is said with the part, the hook and the round."""

from dataclasses import dataclass, field, make_dataclass
from typing import Any

import numpy as np
import pytest
import torch

import fedstrata as fs
from fedstrata.core import Finish, Part
from fedstrata.errors import ClientError, NeedError, PartError
from tests.federations import final_model, mlp, unequal_clients

DATA = unequal_clients()


def odd(base: type[Part], hook: str, gives: Any, **fields: Any) -> Any:
    """A part whose hook gives what `gives` makes of what the hook is given."""

    def run(self: Any, *given: Any) -> Any:
        return gives(*given)

    run.__code__ = run.__code__.replace(co_name=hook)
    given = [(n, type(v), field(default=v)) for n, v in fields.items()]
    made: Any = make_dataclass("Odd", given, bases=(base,), namespace={hook: run}, frozen=True)
    return made()


def in_a_run(part: Part, engine: str = "apart", **settings: Any) -> fs.Run:
    recipe = fs.recipes.recipe(**{part.slot: part})
    training = fs.SGD(lr=0.1, batch=5)
    return fs.simulate(recipe, mlp(), DATA, rounds=2, engine=engine, training=training, **settings)  # pyright: ignore[reportArgumentType]


WRONG: dict[str, tuple[Any, str]] = {
    "a column too many": (
        odd(fs.Weigh, "weights", lambda state, round: (torch.ones(7, 2) / 7, state)),
        r"round 0: Odd.weights must give a tensor \[K, L\], here \[7, 1\] at the grain 'model'; got \[7, 2\]",
    ),
    "a column a parameter": (
        odd(fs.Weigh, "weights", lambda state, round: (torch.ones_like(round.delta) / 7, state), grain="layer"),
        r"Odd.weights must give a tensor \[K, L\], here \[7, 2\] at the grain 'layer'; got \[7, 53\]",
    ),
    "no weights": (odd(fs.Weigh, "weights", lambda *_: None), r"must return \(weights, state\); got NoneType"),
    "no state": (
        odd(fs.Weigh, "weights", lambda state, round: (round.share[:, None], None)),
        r"must return \(weights, state\); got \(Tensor, NoneType\)",
    ),
    "a short model": (
        odd(fs.Step, "step", lambda state, w, round: (w[:-1], state)),
        r"round 0: Odd.step must give a model, a tensor \[P\], here \[53\]; got \[52\]",
    ),
    "a model of another type": (
        odd(fs.Step, "step", lambda state, w, round: (w.float(), state)),
        "round 0: Odd.step makes a torch.float32 model of a torch.float64 one",
    ),
    "a bare model": (odd(fs.Local, "absorb", lambda state, w, round: w), r"Odd.absorb must return \(model, state\)"),
    "nothing settled": (odd(fs.Local, "settle", lambda *_: None), "Odd.settle must return a dictionary of tensors"),
    "a brief for two": (
        odd(fs.Local, "brief", lambda state, cohort: {"a": torch.ones(2)}),
        r"round 0: Odd.brief must give 'a' as \[K, ...\], here K = 7; got \[2\]",
    ),
    "a client twice": (
        odd(fs.Select, "pick", lambda state, *_: (torch.tensor([0, 2, 2]), state)),
        "round 0: Odd.pick must give positions among 7 clients, .* each at most once; got 2 more than once",
    ),
    "the last but none": (odd(fs.Select, "pick", lambda state, *_: (torch.tensor([0, -1]), state)), "; got -1"),
    "one too far": (odd(fs.Select, "pick", lambda state, *_: (torch.tensor([7]), state)), "; got 7"),
    "not whole": (
        odd(fs.Select, "pick", lambda state, *_: (torch.ones(1), state)),
        r"got a torch.float32 tensor \[1\]",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_server_hook_must_not_give_is_said_with_what_it_must(case: str):
    part, sentence = WRONG[case]
    with pytest.raises(PartError, match=sentence):
        in_a_run(part)


WRONG_ON_CLIENTS: dict[str, tuple[Any, str]] = {
    "a short gradient": (
        odd(fs.Local, "correct", lambda grad, w, turn: grad[:3]),
        r"Odd.correct must give a tensor like the gradient, here \[53\]; got \[3\]",
    ),
    "no gradient": (odd(fs.Local, "correct", lambda *_: None), "Odd.correct must give .*; got NoneType"),
    "a penalty a parameter": (
        odd(fs.Local, "penalty", lambda w, turn, batch: w * w),
        r"Odd.penalty must give one number, a tensor \[\]; got a tensor \[53\]",
    ),
    "no penalty": (odd(fs.Local, "penalty", lambda *_: None), "Odd.penalty must give one number, .*; got NoneType"),
    "a short start": (
        odd(fs.Local, "begin", lambda w, turn: w[:3]),
        r"Odd.begin must give a tensor \[P\], here \[53\]; got \[3\]",
    ),
    "no report": (odd(fs.Local, "report", lambda *_: None), r"Odd.report must return \(memory, upload\); got NoneType"),
}


@pytest.mark.parametrize("engine", ["apart", "stacked"])
@pytest.mark.parametrize("case", WRONG_ON_CLIENTS)
def test_what_a_client_hook_must_not_give_is_said_by_every_engine(case: str, engine: str):
    part, sentence = WRONG_ON_CLIENTS[case]
    with pytest.raises(ClientError, match="round 0.*" + sentence):
        in_a_run(part, engine)


def test_a_correction_of_stacked_numbers_is_looked_at_too():
    """The fused optimisers read memory by the parameters' shape: beyond the end of what is too short."""

    @dataclass(frozen=True)
    class Cut(fs.Local):
        elementwise = True

        def correct(self, grad, w, turn):
            return grad[:, :3]

    with pytest.raises(
        ClientError, match=r"Cut.correct must give a tensor like the gradient, here \[7, 53\]; got \[7, 3"
    ):
        in_a_run(Cut(), "stacked")


def fail(*given: Any) -> Any:
    raise ZeroDivisionError("by nought")


SERVER_HOOKS = [
    (fs.Select, "pick"), (fs.Weigh, "weights"), (fs.Step, "step"), (fs.Local, "brief"), (fs.Local, "absorb"),
    (fs.Local, "settle"), (fs.Local, "treat"),
]  # fmt: skip


@pytest.mark.parametrize("engine", ["apart", "stacked"])
@pytest.mark.parametrize(("base", "hook"), SERVER_HOOKS)
def test_an_error_on_the_server_names_part_hook_and_round(base: type[Part], hook: str, engine: str):
    with pytest.raises(PartError, match=f"^round 0: ZeroDivisionError in Odd.{hook}: by nought$") as caught:
        in_a_run(odd(base, hook, fail), engine)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_round_is_that_in_which_it_happened():
    part = odd(fs.Step, "step", lambda state, w, round: fail() if round.cohort.number else (w, state))
    with pytest.raises(PartError, match=r"^round 1: ZeroDivisionError in Odd.step: by nought$"):
        in_a_run(part)


def test_an_error_out_of_the_rounds_says_where_it_was():
    with pytest.raises(PartError, match=r"^before the first round: ZeroDivisionError in Odd.init: by nought$"):
        in_a_run(odd(fs.Local, "init", fail))
    with pytest.raises(PartError, match=r"^after the last round: ZeroDivisionError in Odd.finish: by nought$"):
        in_a_run(odd(Finish, "finish", fail))
    with pytest.raises(PartError, match=r"^showing the model: ZeroDivisionError in Odd.shown: by nought$"):
        in_a_run(odd(fs.Local, "shown", fail))


CLIENT_HOOKS = ["begin", "outputs", "penalty", "correct", "report"]
SAID = {
    "apart": "round 0, client 0, {stage}: {what}",
    "stacked": "round 0: the stacked clients failed \\({what}\\); engine",
}


@pytest.mark.parametrize("engine", SAID)
@pytest.mark.parametrize("hook", CLIENT_HOOKS)
def test_an_error_on_a_client_names_part_and_hook_whatever_its_kind(hook: str, engine: str):
    what, stage = f"ZeroDivisionError in Odd.{hook}: by nought", "reporting" if hook == "report" else "training"
    with pytest.raises(ClientError, match=SAID[engine].format(what=what, stage=stage)) as caught:
        in_a_run(odd(fs.Local, hook, fail), engine)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_what_is_no_parts_fault_and_what_is_a_sentence_already_stay_as_they_are():
    needy = odd(fs.Step, "step", lambda *_: (_ for _ in ()).throw(NeedError("give it more")))
    with pytest.raises(NeedError, match=r"^give it more$"):
        in_a_run(needy)
    with pytest.raises(ZeroDivisionError, match=r"^by nought$"):
        in_a_run(fs.parts.LWS(), on_round=fail)


def test_positions_may_be_a_list_or_an_array():
    chosen = torch.tensor([4, 0, 2]), [4, 0, 2], np.array([4, 0, 2])
    parts = [odd(fs.Select, "pick", lambda state, *_, c=c: (c, state)) for c in chosen]
    first, *others = (final_model(fs.recipes.recipe(select=p)) for p in parts)
    assert all(torch.equal(first, o) for o in others)
    assert in_a_run(odd(fs.Select, "pick", lambda state, *_: (torch.tensor([]), state))).rounds[0]["empty"]
