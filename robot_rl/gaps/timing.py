"""Gaps of time: what is told late, and what gets lost."""

from __future__ import annotations

from collections import deque
from typing import Literal

import numpy as np
from pydantic import PrivateAttr

from robot_rl.gaps.contract import Gap, Measured
from robot_rl.types.options import Part, Positive, Whole


class Late(Gap):
    """States that are told `seconds` after they were measured, under the time of their measurement."""

    name: Literal["late"] = "late"
    """Of the gap."""
    seconds: Positive
    """Of delay."""
    restamp: bool = False
    """Under the time at which they are told, as a driver does that stamps what it sends and not what it read."""
    _past: deque[Measured] = PrivateAttr(default_factory=deque)

    def measure(self, measured: Measured) -> Measured:
        """The newest that is at least as old; the first of all before that."""
        past, now = self._past, measured.time
        past.append(measured)
        while len(past) > 1 and past[1].time <= now - self.seconds + 1e-9:
            past.popleft()
        found = past[0]
        if not self.restamp:
            return found
        return Measured(now, found.position, found.velocity, found.imu, found.pictures)


class Dropped(Gap):
    """Messages that are lost: the one before is told again."""

    name: Literal["dropped"] = "dropped"
    """Of the gap."""
    share: Part
    """Of all messages."""
    seed: Whole = 0
    """Of which ones."""
    _rng: list[np.random.Generator] = PrivateAttr(default_factory=list)
    _last: list[Measured] = PrivateAttr(default_factory=list)

    def measure(self, measured: Measured) -> Measured:
        """The last that got through."""
        if not self._rng:
            self._rng.append(np.random.default_rng(self.seed))
        if not self._last or self._rng[0].random() >= self.share:
            self._last[:] = [measured]
        return self._last[0]
