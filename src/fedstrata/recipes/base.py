"""Recipes from parts: the slots, what fills them by itself, how several recipes add up."""

from typing import Any

from fedstrata.core import Part, Recipe
from fedstrata.errors import SettingError
from fedstrata.parts import BySize, Everyone
from fedstrata.values import refuse_unknown

DEFAULTS: dict[str, Any] = {"select": Everyone(), "weigh": BySize()}
"""What fills the slots that nobody fills."""

INSTEAD = {"weigh": "feddyn(weigh=Angle()) + lws", "select": "fedbs(select=Sample(k=10)) + lws"}
"""How a method is told to have another part than its own in the slots that take one."""

SLOTS = ("select", "local", "weigh", "server", "shrink", "finish")


def recipe(**slots: Any) -> Recipe:
    """Parts by slot; everyone takes part and clients count by size unless said otherwise."""
    refuse_unknown(slots, list(SLOTS), "a recipe")
    return Recipe(**(DEFAULTS | slots))


def combine(*terms: Recipe | Part) -> Recipe:
    """One recipe of several methods and parts: those of a slot that takes many act in the order given.

    There can be one selection and one weighing; everyone, and by size, give way to any other.
    """
    one: dict[str, Part] = {}
    many: dict[str, list[Part]] = {slot: [] for slot in SLOTS if slot not in DEFAULTS}
    for part in (p for t in terms for p in (t.parts().values() if isinstance(t, Recipe) else [t])):
        if part.slot in many:
            many[part.slot].append(part)
        elif part != DEFAULTS[part.slot] and one.setdefault(part.slot, part) != part:
            both = f"a recipe has one {part.slot} part, not both {one[part.slot]!r} and {part!r}"
            raise SettingError(f"{both}; say which in a method's brackets, as in {INSTEAD[part.slot]}")
    return recipe(**one, **{slot: tuple(parts) for slot, parts in many.items()})
