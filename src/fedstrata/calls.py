"""Names with settings in brackets, as text: `fedprox(mu=0.1)`, `resnet20(norm="group")`."""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedstrata.errors import SettingError


@dataclass(frozen=True)
class Calls:
    """What the texts of one kind look like, in the words of errors about them."""

    what: str  # "a recipe"
    write: str  # some of them, to imitate
    example: str  # one with a setting
    values: str  # what a setting may be: "a number nor a text in quotes"

    def expression(self, text: str) -> ast.expr:
        """The text as Python reads it; nothing in it is carried out."""
        try:
            return ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError):
            raise self._not_one(text) from None

    def call(self, node: ast.expr, text: str, value: Callable[[ast.expr], Any]) -> tuple[str, dict[str, Any]]:
        """The name and the settings in `name` or `name(key=value, ...)`."""
        if isinstance(node, ast.Name):
            return node.id, {}
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            raise self._not_one(text)
        names = [k.arg for k in node.keywords]
        if twice := [n for n in names if names.count(n) > 1]:
            raise SettingError(f"{twice[0]!r} is given twice in {text!r}")
        if node.args or any(k.arg is None for k in node.keywords):
            raise SettingError(f"settings in {text!r} need their names, e.g. {self.example}")
        return node.func.id, {str(k.arg): value(k.value) for k in node.keywords}

    def literal(self, node: ast.expr, text: str) -> Any:
        """A plain value."""
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError):
            raise SettingError(f"{ast.unparse(node)!r} in {text!r} is neither {self.values}") from None

    def _not_one(self, text: str) -> SettingError:
        return SettingError(f"{text!r} is not {self.what}; write e.g. {self.write}")
