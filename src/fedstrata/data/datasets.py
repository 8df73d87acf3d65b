"""Data sets by name, by name with settings, or by the path of a user's own file."""

import re
from collections.abc import Sequence
from functools import partial
from inspect import signature
from pathlib import Path

from fedstrata.calls import Calls
from fedstrata.data.examples import Dataset
from fedstrata.data.own import load_own
from fedstrata.data.public import PUBLIC
from fedstrata.errors import DataError, near
from fedstrata.values import fit, refuse_unknown

TEXTS = Calls(
    "a data set",
    "mnist, mnist(scaling='unit') or the path of a file of yours",
    "mnist(scaling='unit')",
    "a number nor a text in quotes",
)


def is_own(text: str) -> bool:
    """Whether a text is the path of a user's own file or folder, and not the name of a public data set.

    A folder that has the name of one is written with a slash, ./mnist.
    """
    if not text or text in PUBLIC:
        return False
    return bool(re.fullmatch(r"[^(]*\.\w+", text)) or "/" in text or Path(text).exists()


def dataset(text: str, label: str = "label", client: str = "client", without: Sequence[str] = ()) -> Dataset:
    """The data set of this name, e.g. `mnist` or `mnist(scaling="unit")`, or of this file or folder.

    `label` and `client` name the columns of a file of one's own, `without` those that are no features.
    """
    if is_own(text):
        return load_own(Path(text), label, client, without=without)
    name, settings = TEXTS.call(TEXTS.expression(text), text, partial(TEXTS.literal, text=text))
    if name not in PUBLIC:
        raise DataError(f"no data set is called {name!r} (a file of yours is given by its path); {near(name, PUBLIC)}")
    known = signature(PUBLIC[name], eval_str=True).parameters
    refuse_unknown(settings, list(known), name)
    return PUBLIC[name](**{n: fit(known[n].annotation, v, f"{name}.{n}") for n, v in settings.items()})
