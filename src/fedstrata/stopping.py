"""Being asked to stop: a run does so when its round ends, and leaves a checkpoint."""

import os
import signal
import threading
from types import FrameType
from typing import Any, ClassVar, Self

USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""What these signals do unless somebody has said otherwise, in which case they are left alone."""


class Stopped(KeyboardInterrupt):
    """A run was asked to stop, and has; `code` is what a command ends with then, 128 and the signal's number."""

    def __init__(self, sentence: str, asked: int):
        super().__init__(sentence)
        self.code = 128 + asked


class Stopping:
    """Within this block SIGTERM and Ctrl-C ask to stop when the round ends; the second time they stop at once.

    Signals reach the main thread alone: a run in another one hears of what was asked of a block there.
    """

    there: ClassVar["Stopping | None"] = None  # in the main thread

    def __init__(self, wanted: bool):
        self.here = threading.current_thread() is threading.main_thread()
        self.wanted = wanted
        self.heard: int | None = None
        self.before: dict[int, Any] = {}

    @property
    def asked(self) -> int | None:
        """The signal that asked to stop, if one did."""
        if self.here or not self.wanted or Stopping.there is None:
            return self.heard
        return Stopping.there.heard

    def __enter__(self) -> Self:
        if self.here and self.wanted:
            ours = [s for s, usual in USUAL.items() if signal.getsignal(s) == usual]
            self.before = {s: signal.signal(s, self._ask) for s in ours}
            if self.before:
                Stopping.there = self
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if Stopping.there is self:
            Stopping.there = None

    def _ask(self, number: int, _: FrameType | None) -> None:
        if self.heard is not None:
            raise KeyboardInterrupt
        self.heard = number
        os.write(2, b"\nfedstrata: stopping when this round ends (once more: at once)\n")
