import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from types import NoneType
from typing import Any, Literal, final, get_args, get_type_hints

import numpy as np
import pytest

from fedstrata import toml, values
from fedstrata.core import Local, Recipe, Select, Step
from fedstrata.errors import FedstrataError, SettingError, near
from fedstrata.experiment import Experiment
from fedstrata.optim import SGD, Adam, AdamW, Training
from fedstrata.partition import IID, Dirichlet
from fedstrata.parts import (
    LWS,
    AdaptiveProx,
    Angle,
    BySize,
    Calmest,
    Equal,
    Everyone,
    FixedShrink,
    PerLayer,
    Prox,
    Sample,
    Scaffold,
    SelectiveProx,
)
from fedstrata.recipes import fedavg, fedprox
from fedstrata.values import Value, fit, kinds, load

OURS = {n: c for n, c in kinds().items() if re.match(r"fedstrata\.(?!flower\.)", c.__module__)}
"""All that an experiment can hold; what nodes say of themselves is there only where Flower was imported."""

NEEDED: dict[str, dict[str, Any]] = {
    "PerLayer": {"values": (0.1, 2.0)},
    "Sample": {"k": 10},
    "Recipe": {"select": Everyone(), "weigh": BySize()},
    "Experiment": {"recipe": fedavg()},
    "Plan": {"rounds": 3},
}
"""What the kinds that cannot be made of nothing are made of."""

RICH: list[Value] = [
    PerLayer((0.1, 0.0, 3e-7)),
    Prox(PerLayer((0.1, 0.2))),
    Sample(fraction=0.25, by="size"),
    AdaptiveProx(mu=0.3, alpha=0.25, grain="layer", mu_init=0.0),
    SelectiveProx(threshold=0.7, batch=5),
    Calmest(k=3, variance="loss"),
    FixedShrink((1.0, 0.5)),
    Angle(alpha=1e-9, grain="tensor", sign=1, count="round"),
    SGD(lr=1e22, batch=7, steps=3, drop_last=True, decay=0.99, clip=10, momentum=0.9, nesterov=True),
    Adam(eps=1e-12, reset_optimizer=False),
    IID(clients=3, min_size=0),
    Dirichlet(clients=7, alpha=1e-3),
    Recipe(Sample(k=2), Equal(), (Prox(PerLayer((1.0,))), Scaffold()), (LWS(),), (LWS(0.5), FixedShrink())),
    Experiment(recipe=fedprox(mu=0.1, select=Sample(k=10)), partition=IID(clients=4), training=AdamW(batch=3), chunk=2),
]


def made(cls: type[Value]) -> Value:
    return cls(**NEEDED.get(cls.__name__, {}))


EVERY = [pytest.param(lambda c=c: made(c), id=n) for n, c in OURS.items()]
EVERY += [pytest.param(lambda v=v: v, id=f"rich {type(v).__name__} {i}") for i, v in enumerate(RICH)]

OPTIONAL = [
    pytest.param(cls, f.name, id=f"{cls.__name__}.{f.name}")
    for cls in OURS.values()
    for f in fields(cls)  # pyright: ignore[reportArgumentType]  every Value is a dataclass
    if NoneType in get_args(get_type_hints(cls)[f.name])
]


@pytest.fixture
def own_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of settings made within a test are forgotten after it."""
    monkeypatch.setattr(values, "KINDS", dict(values.KINDS))


def through_json(value: Value) -> Value:
    return load(json.loads(json.dumps(value.to_dict())), type(value))


def through_toml(value: Value) -> Value:
    return load(tomllib.loads(toml.dumps(value.to_dict())), type(value))


@pytest.mark.parametrize("make", EVERY)
def test_a_repr_evaluates_to_the_value(make: Callable[[], Value]):
    value = make()  # its own class first: Adam is an optimiser of clients and a part of the server
    assert eval(repr(value), dict(OURS) | {type(value).__name__: type(value)}) == value


@pytest.mark.parametrize("travel", [through_json, through_toml])
@pytest.mark.parametrize("make", EVERY)
def test_every_value_survives_a_journey_as_text(make: Callable[[], Value], travel: Callable[[Value], Value]):
    value = make()
    back = travel(value)
    assert back == value
    assert type(back) is type(value)
    assert back.fingerprint == value.fingerprint


@pytest.mark.parametrize("travel", [through_json, through_toml])
@pytest.mark.parametrize(("cls", "name"), OPTIONAL)
def test_none_survives_a_journey_as_text(cls: type[Value], name: str, travel: Callable[[Value], Value]):
    value = Sample(fraction=0.5) if (cls, name) == (Sample, "k") else made(cls)
    value = replace(value, **{name: None})  # pyright: ignore[reportArgumentType]  every Value is a dataclass
    assert getattr(travel(value), name) is None


@pytest.mark.parametrize("make", EVERY)
def test_every_value_is_frozen_and_hashable(make: Callable[[], Value]):
    value = make()
    assert hash(value) == hash(make())
    first = next(iter(value.to_dict().keys() - {"kind"}), "anything")
    with pytest.raises(FrozenInstanceError):
        setattr(value, first, 1)


def test_different_values_have_different_fingerprints():
    prints = {v.fingerprint for v in [*RICH, *(made(c) for c in OURS.values())]}
    assert len(prints) == len(RICH) + len(OURS)


def test_a_fingerprint_is_twelve_hexadecimal_digits():
    print_ = fedavg().fingerprint
    assert len(print_) == 12
    assert int(print_, 16) > 0


KNOWN = "0f5cc951ffe1"
"""Of the recipe below. It names run folders: should it change, so do the names of everybody's old runs."""


def test_a_fingerprint_is_the_same_in_every_release():
    assert fedprox(mu=0.1, select=Sample(k=10), shrink=LWS(0.5)).fingerprint == KNOWN


def test_a_fingerprint_is_the_same_in_every_process():
    code = (
        "from fedstrata.parts import LWS, Sample\nfrom fedstrata.recipes import fedprox\nimport sys\n"
        "sys.stdout.write(fedprox(mu=0.1, select=Sample(k=10), shrink=LWS(0.5)).fingerprint)"
    )
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout == KNOWN


def test_whole_numbers_become_floats():
    assert type(Prox(1).mu) is float
    assert repr(LWS(1)).startswith("LWS(beta=1.0, ")
    assert type(SGD(lr=1).lr) is float
    assert PerLayer((1, 2)).values == (1.0, 2.0)
    assert all(type(v) is float for v in PerLayer((1, 2)).values)


def test_lists_and_single_values_become_tuples():
    assert fedavg(local=Prox(0.1)) == fedavg(local=[Prox(0.1)]) == fedavg(local=(Prox(0.1),))
    assert hash(fedavg(local=[Prox(0.1)])) == hash(fedavg(local=Prox(0.1)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Prox(1), Prox(1.0)),
        (SGD(clip=1), SGD(clip=1.0)),
        (fedavg(local=Prox(2)), fedavg(local=[Prox(2.0)])),
        (Angle(sign=1), Angle(sign=1.0)),  # pyright: ignore[reportArgumentType]
        (Prox(0.0), Prox(-0.0)),
    ],
    ids=["float", "optional float", "tuple", "choice of numbers", "minus zero"],
)
def test_equal_values_have_equal_fingerprints(one: Value, other: Value):
    assert one == other
    assert one.fingerprint == other.fingerprint


def test_numbers_from_numpy_become_plain_ones():
    value = Prox(np.float64(0.25))
    assert repr(value).startswith("Prox(mu=0.25, ")
    assert through_toml(value) == Prox(0.25)


def test_true_is_not_a_choice_of_one():
    with pytest.raises(SettingError, match=r"Angle.sign must be one of -1, 1; got True"):
        Angle(sign=True)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("make", "given", "sentence"),
    [
        (Prox, {"mu": "a"}, "Prox.mu must be a number or a PerLayer; got 'a'"),
        (Prox, {"mu": True}, "Prox.mu must be a number or a PerLayer; got True"),
        (Prox, {"mu": None}, "Prox.mu must be a number or a PerLayer; got None"),
        (SGD, {"batch": 2.0}, "SGD.batch must be a whole number or nothing; got 2.0"),
        (SGD, {"epochs": True}, "SGD.epochs must be a whole number; got True"),
        (SGD, {"drop_last": 1}, "SGD.drop_last must be true or false; got 1"),
        (Experiment, {"recipe": fedavg(), "data": 3}, "data must be a text; got 3"),
        (Experiment, {"recipe": fedavg(), "buffers": "mean"}, "buffers must be one of 'average'"),
        (LWS, {"grain": "layers"}, "LWS.grain must be one of 'tensor', 'layer', 'model'; got 'layers'"),
        (LWS, {"grain": ["layer"]}, "LWS.grain must be one of"),
        (PerLayer, {"values": [1.0, "b"]}, r"PerLayer.values\[1\] must be a number; got 'b'"),
        (fedavg, {"select": BySize()}, r"Recipe.select must be a Select; got BySize\(\)"),
        (fedavg, {"local": (Prox(), BySize())}, r"Recipe.local\[1\] must be a Local; got BySize\(\)"),
        (SelectiveProx, {"threshold": "mean"}, "SelectiveProx.threshold must be a number or 'median'"),
    ],
)
def test_a_wrong_type_is_a_sentence(make: Callable[..., Value], given: dict[str, Any], sentence: str):
    with pytest.raises(SettingError, match=sentence):
        make(**given)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Prox(-0.1), "Prox.mu must not be negative; got -0.1"),
        (lambda: Prox(float("nan")), "Prox.mu must be a number or a PerLayer; got nan"),
        (lambda: Sample(), "Sample needs either k or fraction"),
        (lambda: Sample(k=1, fraction=0.1), "Sample needs either k or fraction"),
        (lambda: SGD(nesterov=True), "SGD.nesterov needs a momentum above 0"),
        (lambda: Dirichlet(alpha=0), "Dirichlet.alpha must be above 0; got 0.0"),
        (lambda: Experiment(recipe=fedavg(), rounds=0), "rounds must be at least 1; got 0"),
    ],
)
def test_an_impossible_value_is_a_sentence(build: Callable[[], Value], sentence: str):
    with pytest.raises(SettingError, match=sentence):
        build()


@pytest.mark.parametrize(
    ("data", "kind", "sentence"),
    [
        ({"kind": "Scafold"}, Local, "no local is called 'Scafold'; did you mean 'Scaffold'?"),
        ({"kind": "scaffold"}, Local, "no local is called 'scaffold'; did you mean 'Scaffold'?"),
        ({"kind": "Prox"}, Select, "no select is called 'Prox'; choose from Calmest, Everyone, "),
        ({"kind": "Local"}, Local, "no local is called 'Local'; "),
        ({}, Training, "no training is called 'Training'; choose from Adam, AdamW, SGD"),
        ({"kind": "Prox", "mmu": 1}, Local, "Prox has no setting 'mmu'; did you mean 'mu'?"),
        ({"kind": "Everyone", "k": 1}, Select, "Everyone has no setting 'k'; it has no settings"),
        ({"kind": "Recipe", "weigh": {"kind": "Equal"}}, Recipe, "Recipe needs a value for select"),
        ({"kind": "PerLayer"}, Value, "PerLayer needs a value for values"),
        ({"kind": "Prox", "mu": {"kind": "PerLayr"}}, Local, "'PerLayr'; did you mean 'PerLayer'?"),
        ({"kind": "Prox", "mu": {"kind": "PerLayer", "values": ["a"]}}, Local, "PerLayer.values[0] must be a number"),
    ],
)
def test_a_dictionary_that_describes_nothing_is_a_sentence(data: dict[str, Any], kind: type[Value], sentence: str):
    with pytest.raises(SettingError) as error:
        load(data, kind)
    assert sentence in str(error.value)


def test_a_dictionary_needs_no_kind_where_only_one_will_do():
    assert Prox.from_dict({"mu": 1}) == Prox(1.0)
    assert load({"mu": {"values": [1, 2]}}, Prox) == Prox(PerLayer((1.0, 2.0)))


def test_what_a_dictionary_leaves_out_takes_its_default():
    assert AdaptiveProx.from_dict({"mu": 0.5}) == AdaptiveProx(mu=0.5)


def test_only_concrete_classes_are_kinds():
    assert {"Prox", "SGD", "Recipe"} <= kinds().keys()
    assert not {"Part", "Local", "Training", "_Adaptive", "Partition"} & kinds().keys()
    assert {"SGD", "Adam", "AdamW"} == {n for n, c in kinds(Training).items() if c.__module__ == "fedstrata.optim"}


def test_a_name_that_fedstrata_has_is_refused(own_kinds: None):
    with pytest.raises(SettingError, match=r"test_values\.Prox has the name of fedstrata\.parts\.local\.prox\.Prox"):
        type("Prox", (Local,), {"__module__": __name__})
    assert load({"kind": "Prox"}) == Prox()


def test_a_part_from_outside_is_loaded_by_its_name(own_kinds: None):
    @final
    @dataclass(frozen=True)
    class Halve(Step):
        by: float = 2.0

        def step(self, state, proposal, round):
            return proposal / self.by, state

    assert load({"kind": "Halve", "by": 4}) == Halve(4.0)
    assert load(fedavg(server=Halve(3)).to_dict()) == fedavg(server=Halve(3.0))


def test_a_class_of_ones_own_may_be_made_again(own_kinds: None):
    first = type("Again", (Local,), {"__module__": __name__})
    second = type("Again", (Local,), {"__module__": __name__})
    assert values.KINDS["Part", "Again"] is second
    assert second is not first


def test_fit_takes_the_first_hint_that_holds():
    assert fit(int | None, None, "x") is None
    assert fit(float | Literal["median"], "median", "x") == "median"
    assert fit(tuple[float, ...], [1, 2], "x") == (1.0, 2.0)
    assert fit(tuple[float, ...], 3, "x") == (3.0,)
    assert fit(Any, {"a": 1}, "x") == {"a": 1}


def test_setting_errors_are_value_errors_and_our_own():
    assert issubclass(SettingError, FedstrataError)
    assert issubclass(SettingError, ValueError)


def test_the_near_miss_or_else_the_choice():
    assert near("fedprx", ["fedavg", "fedprox"]) == "did you mean 'fedprox'?"
    assert near("FEDPROX", ["fedavg", "fedprox"]) == "did you mean 'fedprox'?"
    assert near("zzz", ["b", "a"]) == "choose from a, b"
