"""Recipes as text: `fedprox(mu=0.1) + fedlayerwise + lws(beta=0.1)`, and back."""

import ast
import inspect
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from fedstrata.core import Part, Recipe
from fedstrata.errors import SettingError, near
from fedstrata.parts import PerLayer
from fedstrata.recipes import DEFAULTS, METHODS, SLOTS, combine
from fedstrata.values import kinds, refuse_unknown


def parse_recipe(text: str) -> Recipe:
    """The recipe that a text describes: methods and parts joined by +, each with settings in brackets if any."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise SettingError(f"{text!r} is not a recipe; write e.g. fedprox or fedprox(mu=0.1) + lws(beta=0.1)") from None
    terms = [_term(*_call(n, text)) for n in _summands(node)]
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
    if isinstance(node, ast.Name):
        return node.id, {}
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise SettingError(f"{text!r} is not a recipe; write e.g. fedprox or fedprox(mu=0.1) + lws(beta=0.1)")
    names = [k.arg for k in node.keywords]
    if twice := [n for n in names if names.count(n) > 1]:
        raise SettingError(f"{twice[0]!r} is given twice in {text!r}")
    if node.args or any(k.arg is None for k in node.keywords):
        raise SettingError(f"settings in {text!r} need their names, e.g. fedprox(mu=0.1)")
    return node.func.id, {str(k.arg): _value(k.value, text) for k in node.keywords}


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_value(e, text) for e in node.elts)
    if isinstance(node, ast.Call):
        name, settings = _call(node, text)
        known = _parts() | {"PerLayer": PerLayer}
        if name not in known:
            raise SettingError(f"no part is called {name!r}; {near(name, known)}")
        return known[name].from_dict({"kind": name} | settings)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise SettingError(
            f"{ast.unparse(node)!r} in {text!r} is neither a number, a text in quotes nor a part"
        ) from None
