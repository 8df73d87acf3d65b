"""Every error that fedstrata raises on purpose, and the words they share.

FedstrataError                    caught by the command, printed as one sentence, exit code 2
  SettingError   (ValueError)     a setting has a wrong type, an impossible value or an unknown name
  DataError      (ValueError)     the data or its partition cannot be used
  ModelError     (ValueError)     parameter names or shapes do not fit the model
  NeedError      (ValueError)     a recipe needs something that the experiment does not give
  ClientError    (RuntimeError)   a client failed; names the stage, the round and the client
  PartError      (RuntimeError)   a hook of a part failed or gave what it must not; names the round, the part, the hook
  NotFiniteError (RuntimeError)   a client (with on_nonfinite="raise") or the server produced NaN or infinity
"""

from collections.abc import Iterable
from difflib import get_close_matches


class FedstrataError(Exception):
    """Something a user can mend; its text says what was given, what is needed and what to do."""


class SettingError(FedstrataError, ValueError):
    """A setting has a wrong type, an impossible value or an unknown name."""


class DataError(FedstrataError, ValueError):
    """The data or its partition cannot be used."""


class ModelError(FedstrataError, ValueError):
    """Parameter names or shapes do not fit the model."""


class NeedError(FedstrataError, ValueError):
    """A recipe needs something that the experiment does not give."""


REMEDIES = {
    "proxy": "data of the server's own: give the experiment some, e.g. proxy = 200",
    "features": "features: give a model whose linear classifier, or module called classifier, comes after other layers",
    "labels": "class labels: give one whole number an example, below the number of the model's outputs",
    "accuracy": "an accuracy: give class labels, one whole number an example below the number of the model's outputs",
}
"""What to do about each need of a recipe that an experiment may fail to meet."""


class ClientError(FedstrataError, RuntimeError):
    """A client failed; the text names the stage, the round and the client."""


class PartError(FedstrataError, RuntimeError):
    """A hook of a part failed, or gave what it must not; the text names the round, the part and the hook."""


class NotFiniteError(FedstrataError, RuntimeError):
    """NaN or infinity where a number is needed."""


def near(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the near miss, or the choice."""
    known = sorted(set(known))
    close = get_close_matches(name, known, 1) or get_close_matches(name.lower(), [k.lower() for k in known], 1)
    close = [k for k in known if k.lower() == close[0].lower()] if close else []
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"


def in_short(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__


def check(fine: bool, sentence: str) -> None:
    """Raise a SettingError with this sentence unless all is fine."""
    if not fine:
        raise SettingError(sentence)
