"""Control periods with absolute deadlines: no drift, no bursts, every missed period counted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from robot_rl.real.core.clock import Clock


@dataclass(frozen=True)
class Tick:
    """One control period that has begun.

    Args:
        index: k of the deadline t_k = t_0 + k * period.
        deadline: t_k [s].
        lateness: wake-up time minus deadline [s].
        skipped: deadlines that passed unused since the tick before.
    """

    index: int
    deadline: float
    lateness: float
    skipped: int


class Scheduler:
    """Waits for t_k = t_0 + k * period; a late loop skips to the next deadline ahead and never catches up in a burst.

    Args:
        period: [s].
        clock: source of time.

    Raises:
        ValueError: period not finite and positive.

    Source: specs of the control loop (absolute deadlines); t_k is a product, so rounding does not add up.
    """

    def __init__(self, period: float, clock: Clock) -> None:
        if not (math.isfinite(period) and period > 0.0):
            raise ValueError(f"period is {period}, expected a finite number of seconds > 0")
        self.period = period
        self.ticks = 0
        self.missed = 0
        self._clock = clock
        self._origin = clock.now()
        self._index = -1

    def restart(self) -> None:
        """Take the present moment as t_0: the next tick comes at once. Counters stay."""
        self._origin = self._clock.now()
        self._index = -1

    def wait(self) -> Tick:
        """Sleep until the next deadline ahead of now and return it.

        A loop that calls this at time t with t_{k+1} <= t missed floor((t - t_k) / period) deadlines; the next one used
        is the first that lies ahead. The first call returns at once with t_0.
        """
        now = self._clock.now()
        skipped = 0
        if self._index >= 0:
            late = math.floor((now - self._origin) / self.period + 1e-9) - self._index
            skipped = max(late, 0)
        self._index += skipped + 1
        deadline = self._origin + self._index * self.period
        self._clock.sleep_until(deadline)
        self.ticks += 1
        self.missed += skipped
        return Tick(self._index, deadline, self._clock.now() - deadline, skipped)
