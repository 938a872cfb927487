"""The limiter's step for a handful of joints in plain floats: the same arithmetic as the arrays, a fifth of the time.

An array operation of NumPy costs about a microsecond whatever it does, and one step needs some sixty; a robot has few
joints, so a loop over floats wins. Equal to `JointLimiter` bit for bit (tests/real/test_limiter.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, pi, sqrt

_TURN = 2.0 * pi


def stop_speed(distance: float, a: float, period: float, h: float) -> float:
    """`limiter.stopping_speed` for one joint."""
    room = distance if distance > 0.0 else 0.0
    unit = a * (h * h)
    ratio = 2.0 * period / h - 1.0
    n = floor(0.5 * (sqrt(ratio * ratio + 8.0 * room / unit) - ratio))
    return (room + 0.5 * unit * n * (n + 1.0)) / (period + n * h)


def _wrap(angle: float) -> float:
    return (angle + pi) % _TURN - pi


class ScalarLimits:
    """Limits of J joints as floats; the arguments are those of `JointLimiter`, without jerk."""

    def __init__(
        self,
        lower: Sequence[float],
        upper: Sequence[float],
        velocity: Sequence[float],
        acceleration: Sequence[float],
        coast: Sequence[float],
        continuous: Sequence[bool],
        min_period: float,
    ) -> None:
        self._joints = list(zip(lower, upper, velocity, acceleration, coast, continuous))
        self._h = min_period

    def track(
        self,
        target: Sequence[float],
        before: Sequence[float],
        position: Sequence[float],
        velocity: Sequence[float],
        period: float,
    ) -> tuple[list[float], list[bool], list[bool], list[float]]:
        """Velocities towards position targets.

        Args:
            target: (J,) wanted positions; what is not finite brakes.
            before: (J,) targets of the step before.
            position: (J,) previous command.
            velocity: (J,) previous commanded velocity.
            period: of this step [s].

        Returns:
            (J,) next velocities, at_limit, at_rate, and the targets to remember.
        """
        wanted, kept, h = [], [], self._h
        for (_, _, fastest, a, coast, turns), goal, old, q in zip(self._joints, target, before, position):
            if not isfinite(goal):
                wanted.append(0.0)
                kept.append(q)
                continue
            error, moved = goal - q, goal - old
            if turns:
                error, moved = _wrap(error), _wrap(moved)
            own = moved / period
            if not -fastest <= own <= fastest:
                own = 0.0
            lag = error - own * period
            far = fastest * period + coast
            distance = abs(lag)
            speed = stop_speed(distance if distance < far else far, a, period, h)
            wanted.append(own + (speed if lag > 0.0 else -speed if lag < 0.0 else 0.0 * speed))
            kept.append(goal)
        speeds, at_limit, at_rate = self.bound(wanted, position, position, velocity, period)
        return speeds, at_limit, at_rate, kept

    def bound(
        self,
        wanted: Sequence[float],
        highest: Sequence[float],
        lowest: Sequence[float],
        velocity: Sequence[float],
        period: float,
    ) -> tuple[list[float], list[bool], list[bool]]:
        """Wanted velocities (J,) inside all limits, counted from the highest and lowest places (J,) [rad]."""
        speeds, at_limit, at_rate, h = [], [], [], self._h
        for (lower, upper, fastest, a, coast, _), w, top, bottom, v in zip(
            self._joints, wanted, highest, lowest, velocity
        ):
            change = a * period
            reach = fastest * period + coast
            ahead, behind = upper - top, bottom - lower
            up = stop_speed(ahead if ahead < reach else reach, a, period, h)
            down = -stop_speed(behind if behind < reach else reach, a, period, h)
            fast = v + change if v + change < fastest else fastest
            slow = v - change if v - change > -fastest else -fastest
            high = fast if fast < up else up
            if high < v - change:
                high = v - change
            low = slow if slow > down else down
            if low > v + change:
                low = v + change
            speed = w if w > low else low
            if speed > high:
                speed = high
            off = abs(speed - w) > 1e-12 + 1e-9 * fastest
            limit = off and ((w > up and up <= fast) or (w < down and down >= slow))
            speeds.append(speed)
            at_limit.append(limit)
            at_rate.append(off and not limit)
        return speeds, at_limit, at_rate
