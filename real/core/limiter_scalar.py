"""The limiter's step for a handful of joints in plain floats: the same arithmetic as the arrays, a fifth of the time.

An array operation of NumPy costs about a microsecond whatever it does, and one step needs some sixty; a robot has few
joints, so a loop over floats wins. Equal to `JointLimiter` bit for bit (tests/real/test_limiter.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf, isfinite, sqrt

from robot_rl.real.core.turning import wrap


def stop_speed(distance: float, unit: float, ratio: float, period: float, h: float) -> float:
    """`limiter.stopping_speed` for one joint.

    Args:
        distance: room ahead [rad].
        unit: braking acceleration times h squared [rad].
        ratio: 2 period / h - 1.
        period: of this step [s].
        h: shortest period that may follow [s].
    """
    room = distance if distance > 0.0 else 0.0
    n = floor(0.5 * (sqrt(ratio * ratio + 8.0 * room / unit) - ratio))
    return (room + 0.5 * unit * n * (n + 1.0)) / (period + n * h)


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
        units = [a * (min_period * min_period) for a in acceleration]
        self._joints = list(zip(lower, upper, velocity, acceleration, coast, units))
        self._turns, self._h = continuous, min_period

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
        ratio = 2.0 * period / h - 1.0
        for (_, _, fastest, _, coast, unit), turns, goal, old, q in zip(
            self._joints, self._turns, target, before, position
        ):
            if not isfinite(goal):
                wanted.append(0.0)
                kept.append(q)
                continue
            error, moved = goal - q, goal - old
            if turns:
                error, moved = wrap(error), wrap(moved)
            own = moved / period
            if not -fastest <= own <= fastest:
                own = 0.0
            lag = error - own * period
            far = fastest * period + coast
            distance = abs(lag)
            speed = stop_speed(distance if distance < far else far, unit, ratio, period, h)
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
        ratio = 2.0 * period / h - 1.0
        for (lower, upper, fastest, a, coast, unit), w, top, bottom, v in zip(
            self._joints, wanted, highest, lowest, velocity
        ):
            change = a * period
            ahead, behind = upper - top, bottom - lower
            fast = v + change if v + change < fastest else fastest
            slow = v - change if v - change > -fastest else -fastest
            high, low, up, down = fast, slow, inf, -inf
            # who has more room than a brake in continuous time would need is not held back by the limit
            if not ahead > 1.001 * (fast * period + fast * fast / (2.0 * a)):
                reach = fastest * period + coast
                up = stop_speed(ahead if ahead < reach else reach, unit, ratio, period, h)
                high = fast if fast < up else up
            if not behind > 1.001 * (slow * slow / (2.0 * a) - slow * period):
                reach = fastest * period + coast
                down = -stop_speed(behind if behind < reach else reach, unit, ratio, period, h)
                low = slow if slow > down else down
            if high < v - change:
                high = v - change
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
