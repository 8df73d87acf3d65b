"""Settings as plain data: parts, optimisers, partitions and recipes print, compare, hash and travel as text."""

import hashlib
import json
from abc import ABC
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache
from inspect import isabstract
from math import isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from fedstrata.errors import SettingError, near

KINDS: dict[tuple[str, str], type["Value"]] = {}
"""Every class of settings by (family, name), outside ones included; a family is Part, Training, ..."""


class Value(ABC):
    """Base of every frozen dataclass of settings: checks its own fields, and travels as JSON or TOML.

    Whole numbers given for a float become floats and lists become tuples, so that equal settings have equal text.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        family = next(c.__name__ for c in reversed(cls.__mro__) if issubclass(c, Value) and c is not Value)
        known = KINDS.get((family, cls.__name__))
        if known is not None and known.__module__.startswith("fedstrata.") and known.__module__ != cls.__module__:
            raise SettingError(f"{cls.__module__}.{cls.__name__} has the name of {known.__module__}.{cls.__name__}")
        KINDS[family, cls.__name__] = cls

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():
            fitted = fit(hint, getattr(self, name), self.called(name))
            object.__setattr__(self, name, fitted)
        self.validate()

    @classmethod
    def called(cls, name: str) -> str:
        """A field in a sentence about its value."""
        return f"{cls.__name__}.{name}"

    def validate(self) -> None:  # noqa: B027  an optional hook
        """Raise a SettingError where the values make no sense together."""

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dictionaries with a "kind" each.

        TOML has no null: a field that is None is left out where that is its default, and says "none" elsewhere.
        """
        said: dict[str, Any] = {"kind": type(self).__name__}
        for field in _fields(type(self)):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                said[field.name] = "none" if value is None else _plain(value)
        return said

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The value that `to_dict` described; fields left out take their defaults."""
        value = load(data, cls)
        assert isinstance(value, cls)
        return value

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that are the same for equal values, in any process, on any machine.

        Settings left at their defaults do not enter, so that a new setting of a part changes no old fingerprint.
        """
        text = json.dumps(_essence(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def kinds(kind: type[Value] = Value) -> dict[str, type[Value]]:
    """The concrete classes of a kind, by name."""
    return {name: c for (_, name), c in KINDS.items() if issubclass(c, kind) and _concrete(c)}


def sibling(name: str, other: str) -> type[Value] | None:
    """The class of this name in the family of another: Adam beside SGD is an optimiser of clients, not a part."""
    families = [family for family, known in KINDS if known == other]
    return next((KINDS[f, name] for f in families if (f, name) in KINDS), None)


def load(data: Mapping[str, Any], kind: type[Value] = Value) -> Value:
    """Build the value a dictionary describes: one of this kind, which it is itself where it does not say."""
    said = str(data.get("kind", kind.__name__))
    known = kinds(kind)
    if said not in known:
        raise SettingError(f"no {kind.__name__.lower()} is called {said!r}; {near(said, known)}")
    cls = known[said]
    given = {k: v for k, v in data.items() if k != "kind"}
    refuse_unknown(given, [f.name for f in _fields(cls)], said)
    missing = [f.name for f in _fields(cls) if _required(f) and f.name not in given]
    if missing:
        raise SettingError(f"{said} needs a value for {', '.join(missing)}")
    return cls(**given)


def refuse_unknown(given: Mapping[str, Any], known: list[str], where: str) -> None:
    """Raise about the first name that is not known."""
    for name in given:
        if name not in known:
            choice = near(name, known) if known else "it has no settings"
            raise SettingError(f"{where} has no setting {name!r}; {choice}")


def fit(hint: Any, value: Any, where: str) -> Any:
    """The value as the type hint wants it, or a SettingError that says what is needed."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _fit_any(get_args(hint), value, where, hint)
    if origin is Literal:
        same = [c for c in get_args(hint) if c == value and isinstance(c, bool) == isinstance(value, bool)]
        if same:
            return same[0]
        raise SettingError(f"{where} must be {in_words(hint)}; got {value!r}")
    if origin is tuple:
        items = value if isinstance(value, (tuple, list)) else (value,)
        return tuple(fit(get_args(hint)[0], v, f"{where}[{i}]") for i, v in enumerate(items))
    if hint in (int, float):
        return _number(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, Value) and isinstance(value, Mapping):
        value = load(value, hint)
    if hint is NoneType and value == "none":
        return None
    if hint is not Any and not isinstance(value, hint):
        raise SettingError(f"{where} must be {in_words(hint)}; got {value!r}")
    return value


def _number(hint: type[int | float], value: Any, where: str) -> int | float:
    """A plain finite number, from numpy's as well; minus zero is zero."""
    if isinstance(value, (Integral if hint is int else Real)) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = hint(value)  # pyright: ignore[reportArgumentType]
            if isfinite(number):
                return number + 0
    raise SettingError(f"{where} must be {in_words(hint)}; got {value!r}")


def _fit_any(hints: tuple[Any, ...], value: Any, where: str, whole: Any) -> Any:
    tables = [h for h in hints if isinstance(h, type) and issubclass(h, Value)]
    for hint in hints:
        try:
            return fit(hint, value, where)
        except SettingError as e:
            if isinstance(value, Mapping) and hint in tables and ("kind" in value or len(tables) == 1):
                raise e from None
    raise SettingError(f"{where} must be {in_words(whole)}; got {value!r}")


def in_words(hint: Any) -> str:
    """What a setting of this type takes."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(in_words(h) for h in get_args(hint))
    if get_origin(hint) is Literal:
        choices = ", ".join(map(repr, get_args(hint)))
        return f"one of {choices}" if len(get_args(hint)) > 1 else choices
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NoneType: "nothing"}
    return names.get(hint, f"a {getattr(hint, '__name__', hint)}")


def _essence(value: Any) -> Any:
    """A value as plain data without the settings that are left at their defaults."""
    if isinstance(value, tuple):
        return [_essence(v) for v in value]
    if not isinstance(value, Value):
        return value
    set_ = {f.name: getattr(value, f.name) for f in _fields(type(value)) if getattr(value, f.name) != _default(f)}
    return {"kind": type(value).__name__} | {n: _essence(v) for n, v in set_.items()}


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return value.to_dict()
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _fields(cls: type[Value]) -> tuple[Any, ...]:
    return fields(cls)  # pyright: ignore[reportArgumentType]  every Value is a dataclass


def _concrete(cls: type[Value]) -> bool:
    """A dataclass by itself, not an interface: `Local` is none, `Prox` is one."""
    return "__dataclass_fields__" in vars(cls) and not isabstract(cls)


def _required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


@cache
def _hints(cls: type[Value]) -> dict[str, Any]:
    """Type hints of the dataclass fields alone."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in _fields(cls)}
