"""Keeps the tool inside a box, looking ahead along the way to where the arm would come to rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from robot_rl.real.core.limiter import JointLimiter, stopping_distance

_ON_THE_WAY = np.array([[0.0], [0.5]])
"""Shares of the time until the last joint stands. The first is where the next step begins: without it, a tool that
swings out and in again would be let a little further out at every step."""


class WorkspaceGuard:
    """Scales a step towards the full brake until the tool would stay inside the box while the arm stops.

    Args:
        lower: (3,) corner of the box [m], base frame.
        upper: (3,) opposite corner.
        forward: joint positions (J,) -> tool position (3,); forward kinematics of the robot's model.

    Source: specification of the bridge, limiter: bisection of 8 steps at the configuration where braking ends. We look
    at places on the way there, too: joints that stop at different times swing the tool out in between.
    """

    def __init__(
        self, lower: tuple[float, ...], upper: tuple[float, ...], forward: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self._lower, self._upper, self._forward = lower, upper, forward

    def excess(self, position: np.ndarray) -> float:
        """How far the tool is outside the box at joint positions (J,) [m]; negative inside."""
        tool = np.asarray(self._forward(position), float).tolist()
        if not all(map(math.isfinite, tool)):
            return math.inf
        return max(max(low - at, at - high) for low, at, high in zip(self._lower, tool, self._upper))

    def hold_back(self, limiter: JointLimiter, places: Sequence[np.ndarray], period: float) -> bool:
        """Reduce the limiter's last step where needed; True when it was.

        Args:
            limiter: after its step.
            places: (J,) positions in which the robot may be when the step begins.
            period: of the step [s].
        """
        wanted, least = limiter.velocity, limiter.braking_velocity(period)
        # already outside: any way that leads no further out
        begins = [(place, max(0.0, self.excess(place)) + 1e-9) for place in places]

        def fits(velocity: np.ndarray) -> bool:
            speed, brake = np.abs(velocity), limiter.max_acceleration
            times = np.minimum(_ON_THE_WAY * (speed / brake).max(), speed / brake)
            ways = np.vstack(
                [(speed - 0.5 * brake * times) * times, stopping_distance(speed, brake, limiter.min_period)]
            )
            ways = velocity * period + np.sign(velocity) * ways
            return all(self.excess(place + way) <= most for place, most in begins for way in ways)

        if fits(wanted):
            return False
        low, high = 0.0, 1.0
        for _ in range(8):
            share = 0.5 * (low + high)
            if fits(least + share * (wanted - least)):
                low = share
            else:
                high = share
        limiter.follow(least + low * (wanted - least), period)
        return True
