"""Grids: the [sweep] table of a TOML file makes many experiments of one."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from fedstrata.errors import SettingError, check
from fedstrata.experiment import Experiment, set_at
from fedstrata.parse import parse_recipe

SWEEP = "sweep"
"""The table that holds lists of values, by the names of settings."""

MOST = 10_000
"""Runs of a sweep; more are a slip of the pen."""


@dataclass(frozen=True)
class Point:
    """One experiment of a sweep: the values it has, by the names of settings, and what they make of the rest."""

    values: Mapping[str, Any]
    experiment: Experiment

    @property
    def name(self) -> str:
        """Its values but for the seed: "fedprox, lr=0.1", with the table of a setting where two have its name."""
        last = [k.rpartition(".")[2] for k in self.values]
        names = {k: k if last.count(n) > 1 else n for k, n in zip(self.values, last, strict=True)}
        said = [str(v) if k == "method" else f"{names[k]}={_short(v)}" for k, v in self.values.items() if k != "seed"]
        return ", ".join(said) or "all"


def checked_axes(settings: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What is swept, by the dotted name of each setting; nothing where there is no such table."""
    table = settings.get(SWEEP, {})
    check(isinstance(table, Mapping), f"[{SWEEP}] must be a table of lists; got {table!r}")
    check(bool(table) or SWEEP not in settings, f"[{SWEEP}] is empty; give it lists of values, e.g. seed = [0, 1, 2]")
    axes: dict[str, list[Any]] = {}
    for path, values in _flat(table, ()):
        check(path not in axes, f"[{SWEEP}] has {path} twice")
        check(isinstance(values, list), f"[{SWEEP}] {path} must be a list of values; got {values!r}")
        check(bool(values), f"[{SWEEP}] {path} is an empty list; give it a value at least")
        again = [v for i, v in enumerate(values) if any(_same(v, w) for w in values[:i])]
        check(not again, f"[{SWEEP}] {path} has {again[0] if again else None!r} twice")
        axes[path] = values
    many = prod(map(len, axes.values()))
    check(many <= MOST, f"[{SWEEP}] makes {many:,} experiments of {', '.join(axes)}; at most {MOST:,} are allowed")
    return axes


def expand(settings: Mapping[str, Any]) -> list[Point]:
    """Every combination of the swept values, the last setting fastest; one experiment where nothing is swept."""
    axes = checked_axes(settings)
    base = {k: v for k, v in settings.items() if k != SWEEP}
    return [_point(base, dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


def _point(base: Mapping[str, Any], values: Mapping[str, Any]) -> Point:
    settings = deepcopy(dict(base))
    try:
        if "method" in values:
            settings.pop("recipe", None)
            settings["method"] = values["method"]
        if any(path.startswith("recipe.") for path in values) and "method" in settings:
            settings["recipe"] = parse_recipe(str(settings.pop("method"))).to_dict()  # of which one value is swept
        for path, value in values.items():
            if path != "method":
                set_at(settings, path, value)
        return Point(values, Experiment.of(settings))
    except SettingError as e:
        said = ", ".join(f"{k} = {_short(v)}" for k, v in values.items())
        raise SettingError(f"[{SWEEP}] {said}: {e}") from None


def _flat(table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Nested tables as dotted names."""
    for key, value in table.items():
        path = (*above, key)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, path)
        else:
            yield ".".join(path), value


def _same(a: Any, b: Any) -> bool:
    """Python holds that 1 is true; settings do not."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _short(value: Any) -> str:
    """A value as it is said in a name."""
    if isinstance(value, Mapping):
        rest = [f"{k}={_short(v)}" for k, v in value.items() if k != "kind"]
        return f"{value.get('kind', '')}({', '.join(rest)})" if rest else str(value.get("kind", "{}"))
    return "[" + ", ".join(map(_short, value)) + "]" if isinstance(value, list) else str(value)
