"""Where time comes from: the steady clock of the machine, or one that a test or a simulation turns by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never run backwards, and a way to wait for one of them."""

    def now(self) -> float:
        """Seconds since an arbitrary origin."""
        ...

    def sleep_until(self, deadline: float) -> None:
        """Return at `deadline` [s of this clock] or later; at once if it has passed."""
        ...


class SteadyClock:
    """The monotonic clock of the machine.

    Args:
        spin: seconds before a deadline that are waited for busily; worth it under a real-time scheduler only.
    """

    def __init__(self, *, spin: float = 0.0) -> None:
        self.spin = spin

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def sleep_until(self, deadline: float) -> None:
        """Sleep, then spin for the last `spin` seconds."""
        rest = deadline - time.monotonic() - self.spin
        if rest > 0.0:
            time.sleep(rest)
        while self.spin > 0.0 and time.monotonic() < deadline:
            pass


class ManualClock:
    """A clock that moves only when it is told to: tests, lockstep simulation, replay of logs.

    Args:
        start: first value [s].
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """The value set last [s]."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move forward and return the new value [s].

        Raises:
            ValueError: negative step; this clock stands for a monotonic one.
        """
        if not seconds >= 0.0:
            raise ValueError(f"seconds is {seconds}, expected >= 0: a steady clock never runs backwards")
        self._now += seconds
        return self._now

    def sleep_until(self, deadline: float) -> None:
        """Jump to `deadline` if it lies ahead."""
        self._now = max(self._now, deadline)
