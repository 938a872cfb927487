"""Seconds of training alone."""

from __future__ import annotations

import time


class Stopwatch:
    """Wall and CPU seconds, paused while something else (evaluation, saving) runs."""

    def __init__(self) -> None:
        self._wall_sum = self._cpu_sum = 0.0
        self._since: tuple[float, float] | None = None

    def resume(self) -> None:
        """Start counting."""
        self._since = (time.perf_counter(), time.process_time())

    def pause(self) -> None:
        """Stop counting."""
        self._wall_sum, self._cpu_sum = self.read()
        self._since = None

    def read(self) -> tuple[float, float]:
        """(wall, CPU) seconds so far."""
        if self._since is None:
            return self._wall_sum, self._cpu_sum
        wall, cpu = self._since
        return self._wall_sum + time.perf_counter() - wall, self._cpu_sum + time.process_time() - cpu
