"""Federations drawn at random for the laws that whole methods obey, and the methods that are exceptions to some."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st

import fedstrata as fs
from fedstrata.core import Part
from fedstrata.parts import (
    AWD,
    DC,
    FOLB,
    AdaDecay,
    Adagrad,
    Adam,
    AdaptiveProx,
    Angle,
    Dawa,
    Dyn,
    FedGAReconstruction,
    Nova,
    OfficialLWS,
    Q,
    Yogi,
)

PROFILE = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
"""The same examples on every machine."""

MEASURED = {"labels", "steps", "loss", "accuracy", "gradient", "loss_variance", "gradient_variance", "class_features"}
GIVEN = MEASURED | {"features", "class_moments"}
"""The needs of a recipe that the drawn replies meet, or that are no business of a server's step."""

METHODS = [n for n, m in fs.recipes.METHODS.items() if m().needs <= GIVEN]


def having(*kinds: type[Part]) -> set[str]:
    """The methods with a part of these kinds."""
    return {n for n in METHODS if any(isinstance(p, kinds) for p in fs.recipes.METHODS[n]().parts().values())}


OFFICIAL = having(OfficialLWS) | {"ldawa_official"}
"""As in the authors' code: running statistics are shrunk too, and groups end where the order of names says."""

STEPS = having(Adagrad, Adam, Yogi)
"""Their server steps by a length of its own, wherever the clients agree to go."""

SIGNS = {"fedadam_fedlaw", "fedadam_flower"}
"""Their step is nearly the sign of the mean update, however short that is."""

CARRIES_ON = having(Dyn, DC)
"""The server adds what the clients moved to their mean."""

NOT_OF_ONE = STEPS | CARRIES_ON | having(AWD, AdaDecay, Dawa, OfficialLWS, Q)
"""One client's model is not what they return."""

NOT_A_MEAN = having(Q, Nova, FOLB, Dawa)
"""Their weights may be negative or sum to something else than 1."""

DIRECTIONS = having(Angle, FedGAReconstruction)
"""They ask for the direction of the mean update, a matter of rounding where the clients cancel each other out."""

WHOLE_MODEL = having(Q, FOLB, FedGAReconstruction, AWD, OfficialLWS) | {"fedadp"}
"""What they do in one layer depends on the others."""

SETTLES = having(AdaptiveProx)
"""Their memory follows the final model, after shrinking."""

POPULATION, GUEST, LR = 60, 59, 0.1
"""All clients; the number that no drawn client has; the clients' learning rate."""

Model = dict[str, Any]


def each(names: Iterable[str]) -> Iterator[str]:
    """One method after the other; where a law breaks, the last that is named broke it."""
    for name in names:
        note(f"method: {name}")
        yield name


def others(*exceptions: set[str]) -> list[str]:
    """The methods that are none of these."""
    return [n for n in METHODS if not any(n in names for names in exceptions)]


@dataclass(frozen=True)
class Layer:
    """A module of a drawn model: all zero perhaps, or one that no client moves."""

    shapes: dict[str, tuple[int, ...]]
    buffers: tuple[str, ...]
    size: float
    kind: Literal["moves", "zero", "still", "zero, still"]


@dataclass(frozen=True)
class Case:
    """A model, and what came back from the clients that it was sent to."""

    start: Model
    replies: tuple[fs.Reply, ...]

    def remade(self, of: Callable[[Model], Model]) -> "Case":
        """The case with everything that goes by the names of parameters changed in the same way."""

        def reply(r: fs.Reply) -> fs.Reply:
            stats, uploads = dict(r.stats), dict(r.uploads)
            stats["gradient"], uploads["dg"] = of(stats["gradient"]), of(uploads["dg"])
            return replace(r, model=of(dict(r.model)), stats=stats, uploads=uploads)

        return Case(of(self.start), tuple(map(reply, self.replies)))

    def sent_by(self, replies: Sequence[fs.Reply]) -> "Case":
        """The case with other replies."""
        return replace(self, replies=tuple(replies))

    def size(self, name: str) -> float:
        """The largest number that was sent under this name."""
        sent = [np.asarray(m[name]) for m in (self.start, *(r.model for r in self.replies))]
        return max(float(np.abs(v).max(initial=0.0)) for v in sent)


MODULES: tuple[str, ...] = ("conv", "", "block.0.fc", "block.1.norm")
BUFFERS = {"running_mean": (3,), "running_var": (3,), "num_batches_tracked": (), "positions": (2,)}
WHOLE = ("num_batches_tracked", "positions")
PARAMETERS = (
    {"weight": (2, 3), "bias": (2,)},
    {"weight": ()},
    {"bias": (3,), "weight": (2, 1, 2, 2), "gain": ()},
    {"weight": (1,), "gain": (3,)},
)

layers = st.builds(
    Layer,
    shapes=st.sampled_from(PARAMETERS),
    buffers=st.sampled_from(((), ("running_var", "num_batches_tracked"), ("positions",), ("running_mean",))),
    size=st.sampled_from((1.0, 1e-6, 1e-3, 1e3, 1e6)),
    kind=st.sampled_from(("moves", "moves", "moves", "zero", "still", "zero, still")),
)


@st.composite
def cases(draw: st.DrawFn, clients: int | None = None, fewest_examples: int = 0) -> Case:
    """Numpy arrays in float64, of numbers that float32 has too."""
    made = dict(zip(MODULES, draw(st.lists(layers, min_size=1, max_size=len(MODULES))), strict=False))
    few, most = (1, 6) if clients is None else (clients, clients)
    someone = st.tuples(st.integers(0, GUEST - 1), st.integers(fewest_examples, 500))
    cohort = st.lists(someone, min_size=few, max_size=most, unique_by=lambda c: c[0])
    cohort = draw(cohort.filter(lambda c: any(n for _, n in c)))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    start, step, alike = _start(made, numbers), numbers.choice((1e-3, 0.1, 1.0)), numbers.random() < 0.2
    models = [_moved(made, start, numbers, step) for _ in cohort]
    models = models[:1] * len(models) if alike else models
    replies = [
        fs.Reply(i, model, n, _stats(start, n, numbers), {"dg": _like_parameters(start, numbers)})
        for model, (i, n) in zip(models, cohort, strict=True)
    ]
    order = numbers.permutation(list(start)).tolist()
    return Case(start, tuple(replies)).remade(lambda m: {n: m[n] for n in order if n in m})


def _start(made: dict[str, Layer], numbers: np.random.Generator) -> Model:
    """The model that clients receive."""
    start: Model = {}
    for module, layer in made.items():
        for name, shape in layer.shapes.items():
            start[_join(module, name)] = _coarse(
                numbers.standard_normal(shape) * layer.size * ("zero" not in layer.kind)
            )
        for name in layer.buffers:
            whole = numbers.integers(0, 9, BUFFERS[name])
            start[_join(module, name)] = np.asarray(whole) if name in WHOLE else _coarse(whole * layer.size)
    return start


def _moved(made: dict[str, Layer], start: Model, numbers: np.random.Generator, step: float) -> Model:
    """A model that a client returns."""
    model: Model = {}
    for module, layer in made.items():
        far = step * layer.size * ("still" not in layer.kind)
        for name in (_join(module, n) for n in layer.shapes):
            model[name] = _coarse(start[name] + far * numbers.standard_normal(start[name].shape))
        for name in (_join(module, n) for n in layer.buffers):
            more = numbers.integers(0, 9, start[name].shape)
            model[name] = start[name] + more if is_whole(start[name]) else _coarse(start[name] + more * layer.size)
    return model


def _stats(start: Model, examples: int, numbers: np.random.Generator) -> dict[str, Any]:
    """What a client measured; one without examples took no steps."""
    some = bool(examples)
    fractions = {n: float(numbers.random()) for n in ("variance", "loss", "accuracy")}
    counts = {"labels": (numbers.integers(0, 9, 4) + 1) * some, "steps": int(numbers.integers(1, 20)) * some}
    vectors = {"class_features": numbers.random((4, 3)) * some, "gradient": _like_parameters(start, numbers)}
    return fractions | counts | vectors


def _like_parameters(start: Model, numbers: np.random.Generator) -> Model:
    return {n: _coarse(numbers.standard_normal(v.shape)) for n, v in start.items() if is_parameter(n, v)}


def _join(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def _coarse(values: Any) -> np.ndarray:
    return np.asarray(np.asarray(values, np.float32), np.float64)


def is_whole(value: Any) -> bool:
    return np.asarray(value).dtype.kind == "i"


def is_parameter(name: str, value: Any) -> bool:
    return not is_whole(value) and not name.endswith(tuple(BUFFERS))


def in_float32(model: Model) -> Model:
    return {n: v if is_whole(v) else v.astype(np.float32) for n, v in model.items()}


def as_tensors(model: Model) -> Model:
    return {n: torch.from_numpy(np.array(v)) for n, v in model.items()}


kinds = st.sampled_from((dict, in_float32, as_tensors, lambda m: as_tensors(in_float32(m))))
"""Numpy or torch, float64 or float32: cases().remade by one of these."""

cases_of_any_kind = st.builds(Case.remade, cases(), kinds)


def step(recipe: fs.Recipe | str, case: Case, state: Any = None, population: int = POPULATION) -> fs.Outcome:
    """One round of a recipe, or of a method by its name."""
    recipe = fs.recipes.METHODS[recipe]() if isinstance(recipe, str) else recipe
    return fs.server_step(recipe, case.start, case.replies, state, population, lr=LR)


def two_rounds(recipe: fs.Recipe | str, case: Case, population: int = POPULATION) -> list[fs.Outcome]:
    """The same clients send the same models once more, after a first round."""
    first = step(recipe, case, population=population)
    return [first, step(recipe, replace(case, start=first.model), first.state, population)]


def memory(out: fs.Outcome) -> Model:
    """What the parts remember, by part and name."""
    return {f"{part}: {n}": v for part, state in out.state.items() if part != "server" for n, v in state.items()}


def bits(model: Model) -> dict[str, bytes]:
    return {n: np.asarray(v).tobytes() for n, v in model.items()}


def assert_near(got: Model, wanted: Model, case: Case, tolerance: float = 1e-9) -> None:
    """Equal up to a fraction of the largest number that was sent under each name, for the names in both."""
    for name in got.keys() & wanted.keys():
        a, b = np.asarray(got[name]), np.asarray(wanted[name])
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * case.size(name), err_msg=name)
