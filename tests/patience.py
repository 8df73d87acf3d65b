"""Waiting for what must come: a test ends, and yet no machine is too busy for it."""

import time
from collections.abc import Callable

PATIENCE = 1200.0
"""Seconds to wait for what takes a few on a machine that has nothing else to do."""


def eventually(what: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether something comes true while we wait for it."""
    end = time.perf_counter() + seconds
    while not what() and time.perf_counter() < end:
        time.sleep(0.02)
    return what()
