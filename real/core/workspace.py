"""Keeps the tool inside a box, looking ahead to where the arm would come to rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from robot_rl.real.core.limiter import JointLimiter, stopping_distance


class WorkspaceGuard:
    """Scales a step towards the full brake until the arm would stop inside the box.

    Args:
        lower: (3,) corner of the box [m], base frame.
        upper: (3,) opposite corner.
        forward: joint positions (J,) -> tool position (3,); forward kinematics of the robot's model.

    Source: specification of the bridge, limiter: bisection of 8 steps at the configuration where braking ends.
    """

    def __init__(
        self, lower: tuple[float, ...], upper: tuple[float, ...], forward: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self._lower, self._upper, self._forward = np.array(lower, float), np.array(upper, float), forward

    def excess(self, position: np.ndarray) -> float:
        """How far the tool is outside the box at joint positions (J,) [m]; negative inside."""
        tool = np.asarray(self._forward(position), float)
        if not np.isfinite(tool).all():
            return np.inf
        return float(np.maximum(self._lower - tool, tool - self._upper).max())

    def hold_back(self, limiter: JointLimiter, places: Sequence[np.ndarray], period: float) -> bool:
        """Reduce the limiter's last step where needed; True when it was.

        Args:
            limiter: after its step.
            places: (J,) positions in which the robot may be when the step begins.
            period: of the step [s].
        """
        wanted, least = limiter.velocity, limiter.braked(period)
        # already outside: any way that leads no further out
        begins = [(place, max(0.0, self.excess(place)) + 1e-9) for place in places]

        def fits(velocity: np.ndarray) -> bool:
            rest = np.sign(velocity) * stopping_distance(np.abs(velocity), limiter.max_acceleration, limiter.min_period)
            return all(self.excess(place + velocity * period + rest) <= most for place, most in begins)

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
