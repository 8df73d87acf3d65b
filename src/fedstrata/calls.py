"""A name with settings in brackets, as in `resnet20(norm="group")`: how models and data sets are said in text."""

import ast
from typing import Any

from fedstrata.errors import SettingError


def parse_call(text: str, example: str) -> tuple[str, dict[str, Any]]:
    """(name, settings) of a text; numbers, texts in quotes, True, False and None can be settings."""
    refusal = SettingError(f"{text!r} is not a name, or a name with settings; write e.g. {example}")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise refusal from None
    if isinstance(node, ast.Name):
        return node.id, {}
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)) or node.args:
        raise refusal
    if any(k.arg is None for k in node.keywords):
        raise refusal
    try:
        return node.func.id, {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    except (ValueError, TypeError):
        raise refusal from None
