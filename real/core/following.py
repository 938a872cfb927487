"""How far a robot is behind what it was told: a leash on targets, and motion that is still under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from robot_rl.real.core.settings import SafetySettings


class Lead:
    """Holds targets near the robot once the command has run ahead of it; tells of a robot that does not follow.

    Args:
        settings: `lead_soft` [rad] is the leash, `lead_fault` and `lead_fault_time` [s] when it is a fault.
        difference: (a, b) -> a - b of joint positions, the short way round for turning joints.
        joints: their number J.
    """

    def __init__(
        self, settings: SafetySettings, difference: Callable[[np.ndarray, np.ndarray], np.ndarray], joints: int
    ) -> None:
        self._settings, self._difference = settings, difference
        self._since = self._stuck_since = np.inf
        self._stuck_at = np.zeros(joints)

    def forget(self) -> None:
        """The command begins where the robot is."""
        self._since = self._stuck_since = np.inf

    def hold(
        self, target: np.ndarray, commanded: np.ndarray, measured: np.ndarray, now: float
    ) -> tuple[np.ndarray, bool, bool]:
        """A target for this tick.

        Args:
            target: (J,) wanted [rad].
            commanded: (J,) last command [rad].
            measured: (J,) last measurement [rad].
            now: [s].

        Returns:
            (J,) target; whether it was held back; whether the robot has not followed for too long.
        """
        soft = self._settings.lead_soft
        ahead = np.abs(self._difference(commanded, measured))
        self._since = min(self._since, now) if (ahead > self._settings.lead_fault).any() else np.inf
        moved = (np.abs(self._difference(measured, self._stuck_at)) > 0.1 * soft)[ahead > 0.9 * soft]
        if not moved.size or moved.all() or not np.isfinite(self._stuck_since):
            self._stuck_at, self._stuck_since = measured, now if moved.size else np.inf
        lost = now - min(self._since, self._stuck_since) > self._settings.lead_fault_time
        if not (ahead > soft).any():
            return target, False, bool(lost)
        leash = measured + np.clip(self._difference(target, measured), -soft, soft)
        return np.where(ahead > soft, leash, target), True, bool(lost)


class Flight:
    """Velocities that were sent and may still move the joints.

    Args:
        joints: their number J.
        dead_time: of the robot [s].
        period: of the commands [s].
    """

    def __init__(self, joints: int, *, dead_time: float, period: float) -> None:
        self._joints, self._behind = joints, dead_time + 2.0 * period
        self._sent: deque[tuple[float, np.ndarray]] = deque(maxlen=4096)

    def append(self, now: float, velocity: np.ndarray) -> None:
        """(J,) velocity [rad/s] that holds from now on."""
        self._sent.append((now, velocity))

    def ways(self, now: float, age: float) -> np.ndarray:
        """(2, J) farthest ways up and down [rad] that velocities already sent may still bring the joints.

        What was measured is as old as the state (`age` [s]), and the robot is behind by anything up to its dead time. A
        period more is the one in which the next command is on its way.
        """
        since = now - age - self._behind
        while len(self._sent) > 1 and self._sent[1][0] <= since:  # each holds until the next
            self._sent.popleft()
        if not self._sent:
            return np.zeros((2, self._joints))
        lengths = np.diff([when for when, _ in self._sent], append=now)
        ways = np.array([velocity for _, velocity in self._sent]) * lengths[:, None]
        back = np.cumsum(ways[::-1], axis=0)
        return np.stack([np.maximum(back.max(0), 0.0), np.minimum(back.min(0), 0.0)])
