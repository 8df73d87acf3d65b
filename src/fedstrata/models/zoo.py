"""Models by name, with options in brackets, or from a factory of one's own."""

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import nn

from fedstrata.calls import Calls
from fedstrata.errors import FedstrataError, ModelError, SettingError, in_short, near
from fedstrata.models.base import Shape
from fedstrata.models.densenet import densenet121
from fedstrata.models.published import har_cnn, har_mlp, layerwise_cnn, mlp200, moon_cnn, simple_cnn
from fedstrata.models.resnet import resnet18, resnet20, wrn56_4
from fedstrata.models.small import cnn, cnn_bn, logreg, mlp
from fedstrata.models.textcnn import textcnn
from fedstrata.models.vit import vit
from fedstrata.rng import seeded, torch_seed
from fedstrata.values import fit, refuse_unknown

Make = Callable[..., nn.Module]
"""make(shape of one example, classes, **options)."""

MODELS: dict[str, Make] = {
    make.__name__: make
    for make in (
        logreg, mlp, mlp200, cnn, cnn_bn, simple_cnn, layerwise_cnn, moon_cnn, har_mlp, har_cnn,
        resnet20, resnet18, wrn56_4, densenet121, vit, textcnn,
    )
}  # fmt: skip
"""The library's own models, by name."""

TEXTS = Calls(
    "a model",
    "mlp, resnet20(norm='group') or your own package.module:make",
    "resnet20(norm='group')",
    "a number nor a text in quotes",
)


def model(
    name: str, shape: Shape, classes: int, seed: int = 0, *, vocabulary: int | None = None, **options: Any
) -> nn.Module:
    """The model of this name, its initial weights drawn from the seed.

    The name may have options, `resnet20(norm="group")`, or be `package.module:make`, a factory of your own that is
    called as make(shape, classes, **options). `vocabulary`, how many token ids the data has, is passed on only to
    models that take it.
    """
    make, said = named(name)
    options = said | options
    known = options_of(make)
    if vocabulary is not None and "vocabulary" in known:
        options = {"vocabulary": vocabulary} | options
    if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        refuse_unknown(options, list(known), name.partition("(")[0])
    if make in MODELS.values():
        options = {n: fit(known[n].annotation, v, f"{make.__name__}.{n}") for n, v in options.items()}
    with seeded(torch_seed(seed, "model")):
        return _made(make, name, tuple(shape), classes, options)


def named(text: str) -> tuple[Make, dict[str, Any]]:
    """The factory that a text names, and the options in its brackets."""
    module, colon, rest = text.partition(":")
    ours = not colon or "(" in module
    node = TEXTS.expression(text if ours else rest)
    name, options = TEXTS.call(node, text, partial(TEXTS.literal, text=text))
    if not ours:
        return _imported(module.strip(), name), options
    if name not in MODELS:
        own = "your own is written package.module:make"
        raise SettingError(f"no model is called {name!r} ({own}); {near(name, MODELS)}")
    return MODELS[name], options


def options_of(make: Make) -> dict[str, inspect.Parameter]:
    """What a factory takes beside shape and classes, by name."""
    try:
        parameters = list(inspect.signature(make, eval_str=make in MODELS.values()).parameters.values())
    except ValueError:  # some that are written in C do not say
        return {}
    return {p.name: p for p in parameters[2:] if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}


def _imported(module: str, name: str) -> Callable[..., Any]:
    """What is said to be a factory, from anywhere."""
    try:
        found = import_module(module)
    except Exception as e:
        raise SettingError(f"the model {module}:{name} cannot be imported: {in_short(e)}") from e
    make = getattr(found, name, None)
    if not callable(make):
        known = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
        choice = f"; {near(name, known)}" if known else ""
        raise SettingError(f"the module {module} has no function or class {name}{choice}")
    return make


def _made(make: Make, text: str, shape: Shape, classes: int, options: dict[str, Any]) -> nn.Module:
    try:
        made = make(shape, classes, **options)
    except FedstrataError:
        raise
    except Exception as e:
        raise ModelError(f"the model {text} cannot be made for examples of shape {shape}: {in_short(e)}") from e
    if not isinstance(made, nn.Module):
        raise ModelError(f"the model {text} must be an nn.Module; its factory returned a {type(made).__name__}")
    return made
