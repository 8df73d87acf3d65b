"""Modules whose loops numba compiles: what works without numba asks here whether there is more."""

import warnings
from functools import cache
from importlib import import_module
from typing import Any


@cache
def working(name: str) -> Any:
    """The module fedstrata.NAME, tried out; None where numba is missing, or does not work, which is told."""
    try:
        module: Any = import_module(f"fedstrata.{name}")
        module.try_out()
    except ImportError:
        return None
    except Exception as e:  # whatever a numba of another version, or a broken cache, may raise
        why = (str(e) or type(e).__name__).splitlines()[0]
        warnings.warn(f"numba does not work here ({why}), so some work is slower", RuntimeWarning, stacklevel=2)
        return None
    return module
