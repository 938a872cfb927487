"""Ages and rates: who has fallen silent, and who talks too much."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import inf


class Watchdogs:
    """Watches the age of named inputs; nothing in ROS notices a topic that never spoke, so that is late too.

    Args:
        limits: name -> (timeout [s], reaction), such as `fault` or `estop`.

    Raises:
        ValueError: a timeout that is not positive.
    """

    def __init__(self, limits: Mapping[str, tuple[float, str]]) -> None:
        for name, (timeout, _) in limits.items():
            if not timeout > 0.0:
                raise ValueError(f"timeout of {name} is {timeout}, expected seconds > 0")
        self._limits = dict(limits)
        self._seen: dict[str, float] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Watched inputs in the order of construction."""
        return tuple(self._limits)

    def feed(self, name: str, now: float) -> None:
        """Input `name` gave a sign at `now` [s].

        Raises:
            KeyError: not one of the watched names.
        """
        if name not in self._limits:
            raise KeyError(f"{name!r} is not watched; watched: {sorted(self._limits)}")
        self._seen[name] = max(now, self._seen.get(name, now))

    def late(self, now: float) -> list[tuple[str, float, str, float]]:
        """Name, timeout [s], reaction and age [s], infinite before the first sign, of every input that is too old."""
        ages = ((name, *limit, now - self._seen.get(name, -inf)) for name, limit in self._limits.items())
        return [item for item in ages if not item[3] <= item[1]]


class Burst:
    """Counts events in a sliding window: dropped messages, floods.

    Args:
        limit: events in the window that are too many.
        window: [s].
    """

    def __init__(self, limit: int, *, window: float = 1.0) -> None:
        self.limit, self.window = limit, window
        self._times: deque[float] = deque(maxlen=limit)

    def add(self, now: float) -> bool:
        """Note one event; True when the last `window` seconds hold `limit` of them."""
        self._times.append(now)
        return self.full(now)

    def full(self, now: float) -> bool:
        """True when the last `window` seconds hold `limit` events."""
        return len(self._times) == self.limit and now - self._times[0] <= self.window

    def clear(self) -> None:
        """Forget the window."""
        self._times.clear()


class Overrun:
    """Counts missed ticks in a row from the times of the ticks that came.

    Args:
        period: nominal [s].
        limit: missed ticks in a row that are an overrun.
        stands_after: seconds without a command after which the joints stand; five periods at least are waited for.

    Attributes:
        gap: ticks missed before the last one.
        stood: whether the joints came to rest by themselves before the last one.
    """

    def __init__(self, period: float, *, limit: int = 5, stands_after: float = inf) -> None:
        self.period, self.limit, self.gap, self.stood = period, limit, 0, False
        self._rest = max(stands_after, 5.5 * period)
        self._last: float | None = None

    @property
    def numbers(self) -> str:
        """What was seen, for whoever reads of the fault."""
        return f"{self.gap} ticks of {1e3 * self.period:g} ms missed in a row, {self.limit} are a fault"

    def tick(self, now: float) -> bool:
        """Note a tick; True when at least `limit` ticks are missing before it."""
        silence = 0.0 if self._last is None else now - self._last
        self.gap, self.stood = max(int(silence / self.period + 0.5) - 1, 0), silence > self._rest
        self._last = now
        return self.gap >= self.limit
