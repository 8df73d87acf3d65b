"""Recipes as text: `fedprox(mu=0.1, select=Sample(k=10))`."""

import ast
import inspect
from typing import Any

from fedstrata.core import Part, Recipe
from fedstrata.errors import SettingError, near
from fedstrata.parts import PerLayer
from fedstrata.recipes import method
from fedstrata.values import kinds, refuse_unknown


def parse_recipe(text: str) -> Recipe:
    """The recipe that a text names: a method, with settings in brackets if any; settings may be parts."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise SettingError(f"{text!r} is not a recipe; write e.g. fedprox or fedprox(mu=0.1)") from None
    name, settings = _call(node, text)
    make = method(name)
    known = [n for n, p in inspect.signature(make).parameters.items() if p.kind is not p.VAR_KEYWORD]
    refuse_unknown(settings, [*known, "select", "local", "weigh", "server", "shrink"], name)
    return make(**settings)


def _call(node: ast.expr, text: str) -> tuple[str, dict[str, Any]]:
    if isinstance(node, ast.Name):
        return node.id, {}
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise SettingError(f"{text!r} is not a recipe; write e.g. fedprox or fedprox(mu=0.1)")
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
        known = kinds(Part) | {"PerLayer": PerLayer}
        if name not in known:
            raise SettingError(f"no part is called {name!r}; {near(name, known)}")
        return known[name].from_dict({"kind": name} | settings)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise SettingError(
            f"{ast.unparse(node)!r} in {text!r} is neither a number, a text in quotes nor a part"
        ) from None
