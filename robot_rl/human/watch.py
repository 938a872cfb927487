"""Looks after what the robot sees and what time it is: cameras that stall or freeze, a wall clock that jumps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from robot_rl.types import Obs


class Watch:
    """Per tick: may what was seen be trusted?

    A camera has stalled when its newest picture is older than two periods, and is frozen when five pictures in a row
    are equal although the robot moved between them. In such a tick nobody drives and the step is never learned from;
    more than `most` in a row end the episode. The wall clock decides nothing here: stamps are monotonic; a jump of it
    against the steady clock is only told, because recordings of several machines are joined by it.

    Args:
        control_hz: decisions per second.
        most: blind ticks in a row before the episode ends.
        wall: clock of the day [s].
        steady: clock that never jumps [s].
    """

    frozen_after = 5
    jump_s = 0.05

    def __init__(
        self,
        control_hz: float,
        most: int = 3,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._period_ms, self._most = 1e3 / control_hz, most
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()
        self.age_ms = 0.0
        """Age of the oldest picture; 0 without cameras."""
        self.blind = False
        """This tick's pictures are not to be trusted."""
        self.jumps = 0
        """How often the wall clock jumped."""
        self.problem = ""
        self._run = 0
        self._same: dict[str, int] = {}
        self._last: dict[str, np.ndarray] = {}
        self._state: np.ndarray | None = None

    @property
    def lost(self) -> bool:
        """Blind for too long: the episode has to end."""
        return self._run > self._most

    def begin(self) -> None:
        """A new episode."""
        self._run, self.blind, self.problem = 0, False, ""
        self._same, self._last, self._state = {}, {}, None

    def look(self, obs: Obs, info: Mapping[str, object]) -> bool:
        """Whether this tick is blind.

        Args:
            obs: without a batch axis; pictures are "image.<camera>".
            info: of the step that led to it; a robot's cameras tell their ages there: "cam_age_ms", name -> (1,).
        """
        self._clock()
        why = self._why_stalled(info) or self._why_frozen(obs)
        self.blind = bool(why)
        self._run = self._run + 1 if self.blind else 0
        if why:
            self.problem = why
        return self.blind

    def _why_stalled(self, info: Mapping[str, Any]) -> str:
        ages = {name: float(np.max(age)) for name, age in info.get("cam_age_ms", {}).items()}
        self.age_ms = max(ages.values(), default=0.0)
        late = [name for name, age in ages.items() if not age <= 2.0 * self._period_ms]
        return f"camera {', '.join(late)} is {self.age_ms:.0f} ms late" if late else ""

    def _why_frozen(self, obs: Obs) -> str:
        state = obs.get("state")
        moved = state is not None and self._state is not None and not np.array_equal(state, self._state)
        self._state = None if state is None else np.array(state)
        frozen = []
        for name, picture in obs.items():
            if not name.startswith("image."):
                continue
            same = name in self._last and np.array_equal(picture, self._last[name])
            if not same:
                self._same[name] = 0
            elif moved:
                self._same[name] = self._same.get(name, 0) + 1
            self._last[name] = picture
            if self._same[name] >= self.frozen_after - 1:
                frozen.append(name.removeprefix("image."))
        return f"camera {', '.join(frozen)} shows the same picture again and again" if frozen else ""

    def _clock(self) -> None:
        offset = self._wall() - self._steady()
        if abs(offset - self._offset) > self.jump_s:
            self.jumps += 1
            self.problem = f"the wall clock jumped by {offset - self._offset:+.2f} s; stamps are of the steady clock"
        self._offset = offset  # a clock that is being put right slowly does not jump
