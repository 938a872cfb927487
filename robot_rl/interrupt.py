"""Ctrl-C and SIGTERM as requests: the run finishes its step, saves, and then stops; a second one stops at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Context in which the first SIGINT or SIGTERM (a scheduler's notice, `kill`) only sets `asked`.

    Args:
        then: called with it, by whoever has to be told; it must not wait.
    """

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.asked, self._then = False, then
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        try:
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._on_signal)
        except ValueError:  # not the main thread: signals stay with whoever owns it
            self._previous = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:  # asked twice: leave at once
            for one in self._previous:
                signal.signal(one, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.ask()

    def ask(self) -> None:
        """Ask as the first Ctrl-C does; from any thread."""
        self.asked = True
        self._then()
