"""Getting out of a place by oneself: a robot that stands where it should drive backs out and goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from robot_rl.types import StateDict, StepEnv


class Recovery:
    """Notices that the robot has not left a small circle for a while, and drives it out with one fixed action.

    Args:
        place: () -> (P,) where the robot is [m], or None when that is not known.
        action: (A,) that leads out; None in place of a number is drawn anew for every recovery, from [-1, 1].
        control_hz: decisions per second.
        seed: of what is drawn.
        patience: places in a row that have to lie in the circle.
        radius: of the circle [m].
        drive_s: how long the way out is driven.

    Source: Stachowicz et al., FastRLAP (the last 30 places within 0.3 m; reverse for 1 s with one random steering).
    """

    def __init__(
        self,
        place: Callable[[], np.ndarray | None],
        action: Sequence[float | None],
        control_hz: float,
        *,
        seed: int = 0,
        patience: int = 30,
        radius: float = 0.3,
        drive_s: float = 1.0,
    ) -> None:
        self._place, self._action, self._radius = place, tuple(action), radius
        self._ticks = max(round(drive_s * control_hz), 1)
        self._seen: deque[np.ndarray] = deque(maxlen=patience)
        self._rng = np.random.default_rng(seed)
        self._left, self._way = 0, np.zeros(len(self._action), np.float32)
        self.count = 0
        """How often it was needed."""

    @property
    def driving(self) -> bool:
        """This tick is part of a recovery."""
        return self._left > 0

    def begin(self) -> None:
        """A new episode, or somebody else drives: look anew."""
        self._seen.clear()
        self._left = 0

    def look(self) -> np.ndarray | None:
        """Before a tick: the action to drive instead of the policy's, or None."""
        if self._left > 0:
            self._left -= 1
            if self._left == 0:
                self._seen.clear()
        place = self._place()
        if self._left == 0 and place is not None:
            self._seen.append(np.array(place, float))
            full = len(self._seen) == self._seen.maxlen
            if full and max(np.linalg.norm(p - self._seen[0]) for p in self._seen) < self._radius:
                self._left, self.count = self._ticks, self.count + 1
                drawn = self._rng.uniform(-1.0, 1.0, len(self._action))
                self._way = np.array([d if a is None else a for a, d in zip(self._action, drawn)], np.float32)
        return self._way if self._left > 0 else None

    def state_dict(self) -> StateDict:
        """Between episodes."""
        return {"count": self.count, "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue."""
        self.count = int(state["count"])
        self._rng.bit_generator.state = state["rng"]


def of_environment(env: StepEnv, seed: int) -> Recovery:
    """The way out that a world knows.

    Raises:
        ValueError: it knows none.
    """
    place, action = env.parts.place, env.parts.way_out
    if place is None or action is None:
        raise ValueError("recover=true needs a world that knows where its robot is and how it gets out: env=race")

    def here() -> np.ndarray | None:
        return place()[0]

    return Recovery(here, action, env.io.control_hz, seed=seed)
