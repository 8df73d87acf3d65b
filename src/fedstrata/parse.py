"""Recipes as text: `fedprox(mu=0.1) + fedlayerwise + lws(beta=0.1)`, and back."""

import ast
import inspect
import re
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

from fedstrata.calls import Calls
from fedstrata.core import Part, Recipe
from fedstrata.errors import SettingError, near
from fedstrata.parts import PerLayer
from fedstrata.recipes import DEFAULTS, METHODS, SLOTS, combine
from fedstrata.values import kinds, refuse_unknown

RECIPES = Calls(
    "a recipe",
    "fedprox or fedprox(mu=0.1) + lws(beta=0.1)",
    "fedprox(mu=0.1)",
    "a number, a text in quotes nor a part",
)

OWN = re.compile(r"[\w.]+:([A-Za-z]\w*)")
"""How models of one's own are given, but not parts."""


def parse_recipe(text: str) -> Recipe:
    """The recipe that a text describes: methods and parts joined by +, each with settings in brackets if any."""
    if own := OWN.search(text):
        known = "once its package is installed and names it under the entry point 'fedstrata.parts'"
        raise SettingError(f"{own[0]!r} in {text!r} is not a part: one of your own is called {own[1]!r}, {known}")
    terms = [_term(*_call(n, text)) for n in _summands(RECIPES.expression(text))]
    return terms[0] if len(terms) == 1 and isinstance(terms[0], Recipe) else combine(*terms)


def recipe_text(recipe: Recipe) -> str:
    """The text that `parse_recipe` reads back."""
    return " + ".join(["fedavg", *(repr(p) for p in recipe.parts().values() if p not in DEFAULTS.values())])


def _summands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_summands(node.left), *_summands(node.right)]
    return [node]


def _term(name: str, settings: dict[str, Any]) -> Recipe | Part:
    """A method by its name, or else a part by its own in any case: lws is LWS."""
    if name in METHODS:
        known = [n for n, p in inspect.signature(METHODS[name]).parameters.items() if p.kind is not p.VAR_KEYWORD]
        refuse_unknown(settings, [*known, *SLOTS], name)
        return METHODS[name](**settings)
    parts = {n.lower(): n for n in _parts()}
    if name.lower() not in parts:
        raise SettingError(f"no method is called {name!r}; {near(name, [*METHODS, *parts])}")
    return Part.from_dict({"kind": parts[name.lower()]} | settings)


@cache
def load_outside() -> None:
    """Import the parts that other packages register under the entry point "fedstrata.parts"."""
    for point in entry_points(group="fedstrata.parts"):
        point.load()


def _parts() -> dict[str, Any]:
    load_outside()
    return kinds(Part)


def _call(node: ast.expr, text: str) -> tuple[str, dict[str, Any]]:
    return RECIPES.call(node, text, partial(_value, text=text))


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_value(e, text) for e in node.elts)
    if isinstance(node, ast.Call):
        name, settings = _call(node, text)
        known = _parts() | {"PerLayer": PerLayer}
        if name not in known:
            raise SettingError(f"no part is called {name!r}; {near(name, known)}")
        return known[name].from_dict({"kind": name} | settings)
    return RECIPES.literal(node, text)
