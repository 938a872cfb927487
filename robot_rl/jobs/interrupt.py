"""Ctrl-C as a request: the run finishes its step, saves, and then stops; a second Ctrl-C stops at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """Context in which the first SIGINT only sets `asked`."""

    def __init__(self) -> None:
        self.asked = False
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        self._previous = signal.getsignal(signal.SIGINT)
        try:
            signal.signal(signal.SIGINT, self._on_signal)
        except ValueError:  # not the main thread: Ctrl-C stays with whoever owns it
            self._previous = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:  # asked twice: leave at once
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.asked = True
