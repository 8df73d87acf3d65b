"""fedstrata: federated learning on data that differs from client to client.

A round, in the order of the files that make it: `data` and `partition` say who owns what; `clients` makes batches;
`layout` and `task` turn a model into functions of a flat vector; `core` says what an algorithm is, `parts` and
`recipes` are the algorithms; `train` is the clients' work, `runtimes` carry it; `server` opens and closes a round;
`evaluate` and `record` tell how it went. `simulate` plays them all. `public` has the names that are meant to stay.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedstrata.version import __version__ as __version__

if TYPE_CHECKING:
    from fedstrata.public import *  # noqa: F403
    from fedstrata.public import __all__ as __all__

FUNCTIONS = {"report", "server_step", "simulate"}
"""Public functions that are called like the modules they are in."""


class Package(ModuleType):
    """Public names and modules come when they are first asked for: `fedstrata --help` need not wait for torch."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name != "__all__":
            return super().__getattribute__(name)  # which says that there is none
        if name not in FUNCTIONS and find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        public = import_module(f"{__name__}.public")
        if name != "__all__" and name not in public.__all__:
            return super().__getattribute__(name)
        return vars(self).setdefault(name, getattr(public, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in FUNCTIONS and isinstance(value, ModuleType)):  # to import a module is not to hide its function
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})


sys.modules[__name__].__class__ = Package
