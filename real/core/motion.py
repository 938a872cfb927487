"""Whether the robot does what it was told: moves when it should, stays when it should, and how far it still will go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf, isfinite

import numpy as np
from numpy.typing import ArrayLike

from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import RobotSpec

Seen = tuple[float, Sequence[float], Sequence[float]]
"""Stamp of a state [s], its (J,) positions [rad] and velocities [rad/s] in plain floats; -inf and nothing = none."""


def farthest(names: Sequence[str], away: ArrayLike, where: str, most: float) -> str:
    """One sentence about the joint that is farthest `away` (J,) [rad] from somewhere."""
    ways = np.abs(away)
    joint = int(np.argmax(ways))
    return f"{names[joint]} is {ways[joint]:.3f} rad {where}, allowed {most:g}"


class FreezeWatch:
    """Notices a driver that repeats its last numbers under new stamps: ages say nothing, and small steps no lead.

    Args:
        settings: of the supervisor.
        spec: of the robot, which rightly does not move within its dead time and its stiction.
    """

    def __init__(self, settings: SafetySettings, spec: RobotSpec) -> None:
        self._set, self._patience = settings, settings.freeze_time + (spec.dead_time or 0.0)
        self._most = settings.freeze_way + spec.stiction
        self._seen: Seen = -inf, (), ()
        self._speed = 0.0  # the largest of what was seen
        self._now = -inf
        self._way, self._moving, self._samples = 0.0, 0.0, 0

    @property
    def numbers(self) -> str:
        """What was seen, for whoever reads of the fault."""
        return (
            f"{self._samples} states of the same numbers, while {self._way:.3f} rad were commanded within "
            f"{self._moving:.2f} s of motion"
        )

    def check(self, seen: Seen, speed: float, now: float) -> bool:
        """True when the states do not change although the robot should be moving.

        Args:
            seen: newest believable measurement.
            speed: largest commanded speed of any joint [rad/s].
            now: [s].
        """
        period, self._now = min(max(now - self._now, 0.0), 2.0 / self._set.rate), now
        known, measured = self._seen[0] > -inf, self._speed
        if seen[0] > self._seen[0]:
            if known and seen[1:] == self._seen[1:]:
                self._samples += 1
            else:
                self._way, self._moving, self._samples = 0.0, 0.0, 0
            self._seen, self._speed = seen, max(map(abs, seen[2]))
        fastest = max(speed, measured)
        if known and fastest > 0.0:  # a robot at rest may say the same for as long as it likes
            self._way += period * fastest
            self._moving += period
        return self._samples >= 3 and self._way > self._most and self._moving > self._patience


class PlaceWatch:
    """Notices a robot that goes away although it was told to stay: it reads its commands otherwise than we mean them.

    Args:
        tolerance: how far it may go [rad].
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._nearest: np.ndarray | None = None

    def leave(self) -> None:
        """Nobody tells it to stay now."""
        self._nearest = None

    def check(self, away: np.ndarray) -> bool:
        """True when a joint has gone too far; `away` (J,) is its distance from where it is told to be, >= 0 [rad]."""
        # it may still be on its way there
        self._nearest = away if self._nearest is None else np.minimum(self._nearest, away)
        return bool((away - self._nearest > self._tolerance).any())


class Farewell:
    """When a latched stop in position mode has said its last: nothing is repeated to a robot that may have changed.

    Args:
        patience: how long the command at rest is repeated to a robot that is there [s].
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.begin(True)

    def begin(self, still: bool) -> None:
        """No stop is latched."""
        self._since, self._said, self._stood = inf, False, still

    def over(self, now: float, still: bool, *, gone: bool, astray: bool) -> bool:
        """True from when nothing more may be sent; it stays so until `begin`, whoever comes back meanwhile.

        Args:
            now: [s].
            still: no motion is commanded.
            gone: the controller or its states are gone, or not believed: one that comes back may read arrays otherwise.
            astray: the robot goes elsewhere than told, so that braking would not reach it.
        """
        self._since = min(self._since, now) if still else inf
        # a brake ends with one command that stands
        self._said |= astray or (gone and still and self._stood) or now - self._since >= self._patience
        self._stood = still
        return self._said


class Leash:
    """Notices a robot that does not follow: too far behind, or standing still at the end of the leash, for too long.

    Args:
        settings: of the supervisor.
        difference: (J,) positions a, b -> a - b, the short way for joints that turn for ever.
    """

    def __init__(self, settings: SafetySettings, difference: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        self._set, self._difference = settings, difference
        self._at = np.zeros(0)  # where it stood since `_stuck`
        self.slacken()

    def slacken(self) -> None:
        """The command is where the robot is."""
        self._lead = self._stuck = inf

    def is_strained(self, lead: Sequence[float], position: np.ndarray, now: float) -> bool:
        """True when the robot does not follow.

        Args:
            lead: (J,) command - robot [rad].
            position: (J,) of the robot [rad].
            now: [s].
        """
        soft, farthest = self._set.lead_soft, max(map(abs, lead))
        self._lead = min(self._lead, now) if farthest > self._set.lead_fault else inf
        if farthest <= 0.9 * soft:
            self._at, self._stuck = position, inf
            return now - self._lead > self._set.lead_fault_time
        tight = np.abs(lead) > 0.9 * soft
        if not isfinite(self._stuck) or (np.abs(self._difference(position, self._at)) > 0.1 * soft)[tight].all():
            self._at, self._stuck = position, now
        return now - min(self._lead, self._stuck) > self._set.lead_fault_time


class UnderWay:
    """Velocities that were sent, and how far they may still bring the joints after the newest measurement.

    Args:
        joints: how many.
        span: seconds by which the robot may be behind, beyond the age of what was measured: its dead time, and the
            periods in which commands are on their way.
    """

    def __init__(self, joints: int, span: float) -> None:
        self._joints, self._span = joints, span
        self._sent: deque[tuple[float, np.ndarray]] = deque(maxlen=4096)

    def add(self, now: float, velocity: np.ndarray) -> None:
        """Note a (J,) velocity that was sent at `now` [s]; it holds until the next."""
        self._sent.append((now, velocity.copy()))

    def ways(self, now: float, age: float) -> np.ndarray:
        """(2, J) farthest ways up, >= 0, and down, <= 0 [rad], for a state that is `age` [s] old at `now`.

        The robot may be behind by anything up to the span, so every shorter past counts too.
        """
        since = now - age - self._span
        while len(self._sent) > 1 and self._sent[1][0] <= since:
            self._sent.popleft()
        if not self._sent:
            return np.zeros((2, self._joints))
        lengths = np.diff([when for when, _ in self._sent], append=now)
        back = np.cumsum((np.array([velocity for _, velocity in self._sent]) * lengths[:, None])[::-1], axis=0)
        return np.stack([np.maximum(back.max(0), 0.0), np.minimum(back.min(0), 0.0)])
