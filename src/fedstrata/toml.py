"""Writing TOML, which Python reads by itself, and nested settings by dotted name."""

import json
from collections.abc import Mapping
from typing import Any


def dumps(data: Mapping[str, Any]) -> str:
    """Plain nested dictionaries as TOML: values first, then a table for every dictionary."""
    return "\n".join(_table(data, ())).strip() + "\n"


def _table(data: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    tables = {k: v for k, v in data.items() if isinstance(v, Mapping)}
    lines = ["", f"[{'.'.join(path)}]"] if path and (len(tables) < len(data) or not data) else []
    lines += [f"{_key(k)} = {inline(v)}" for k, v in data.items() if k not in tables]
    for name, table in tables.items():
        lines += _table(table, (*path, _key(name)))
    return lines


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _text(name)


def _text(s: str) -> str:
    return json.dumps(s, ensure_ascii=False).replace("\x7f", "\\u007f")


def flattened(settings: Any, path: str = "") -> dict[str, Any]:
    """Nested settings by dotted name, training.lr; what is in a list by its number."""
    if not isinstance(settings, (Mapping, list, tuple)):
        return {path: settings}
    items = settings.items() if isinstance(settings, Mapping) else enumerate(settings)
    return {n: v for k, inner in items for n, v in flattened(inner, f"{path}.{k}".lstrip(".")).items()}


def inline(v: Any) -> str:
    """A value on one line, tables included."""
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, str):
        return _text(v)
    if isinstance(v, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {inline(x)}" for k, x in v.items()) + "}"
    if isinstance(v, (list, tuple)):
        return "[" + ", ".join(map(inline, v)) + "]"
    return repr(v)
