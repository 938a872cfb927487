"""Position, velocity and acceleration limits that hold exactly in discrete time, whatever is asked for.

The state is the previous command (q, v), never the measurement. One period of length T moves
    v' in [v - aT, v + aT],  q' = q + v' T.
A state is admissible when braking at `a` from it ends inside the position limits. Braking loses speed first and moves
then, so over periods T_1, T_2, ... it covers v^2 / 2a minus the sum of a T_i^2 / 2: the shortest period covers most.
With h = the shortest period that can come, a joint with speed v' still covers
    S(v') = h (n v' - a h n (n + 1) / 2),  n = floor(v' / (a h)),
and the largest v' with v' T + S(v') <= d is `stopping_speed`. From an admissible state the full brake stays admissible,
so the interval of allowed v' is never empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from robot_rl.real.core.limiter_scalar import ScalarLimits
from robot_rl.real.core.spec import RobotSpec

FEW = 16
"""Up to so many joints are stepped in plain floats, which is several times faster than arrays."""
Array = np.ndarray
Period = float | Array


def stopping_speed(distance: Array, acceleration: Array, period: Period, min_period: Period) -> Array:
    """Largest speed for this period from which a joint still stops within `distance`.

    Args:
        distance: (...) room ahead before this period [rad]; negative counts as 0.
        acceleration: (...) braking acceleration [rad/s^2].
        period: length of this period [s].
        min_period: shortest period that may follow [s], at most `period`.

    Returns:
        (...) [rad/s].

    Source: for period = min_period = T it is v_stop(d) = (d/T + a T m (m+1)/2) / (m+1) with
    m = floor((-1 + sqrt(1 + 8 d / (a T^2))) / 2), the exact discrete-time bound.
    """
    room = np.maximum(distance, 0.0)
    unit = acceleration * (min_period * min_period)
    ratio = 2.0 * period / min_period - 1.0
    n = np.floor(0.5 * (np.sqrt(ratio * ratio + 8.0 * room / unit) - ratio))
    return (room + 0.5 * unit * n * (n + 1.0)) / (period + n * min_period)


def stopping_distance(speed: Array, acceleration: Array, period: Period) -> Array:
    """Way that a joint still makes when it brakes from `speed` >= 0 in periods of `period`, slowing before it moves.

    Args:
        speed: (...) [rad/s].
        acceleration: (...) [rad/s^2].
        period: [s].

    Returns:
        (...) [rad].
    """
    n = np.floor(speed / (acceleration * period))
    return period * (n * speed - 0.5 * acceleration * period * n * (n + 1.0))


def wrap(angle: Array) -> Array:
    """Angle in [-pi, pi)."""
    return (angle + np.pi) % (2.0 * np.pi) - np.pi


def short_way(way: Array, turning: ArrayLike) -> Array:
    """(..., J) ways, the short one round for joints that turn for ever, (J,) bool."""
    return np.where(turning, wrap(way), way)


@dataclass(frozen=True)
class JointLimits:
    """What J joints can do.

    Attributes:
        lower: (J,) smallest position [rad]; ignored for continuous joints.
        upper: (J,) largest position [rad].
        velocity: (J,) largest speed [rad/s].
        acceleration: (J,) largest acceleration [rad/s^2].
        stop_acceleration: (J,) deceleration of `brake`, at least `acceleration`; None: the same.
        jerk: (J,) largest change of acceleration [rad/s^3]; None or inf: no bound. Best effort: the other limits go
            first, so it is exceeded where a position limit needs the brake sooner than the jerk would allow.
        continuous: (J,) bool, joints without position limits whose targets are angles; None: none of them.
    """

    lower: ArrayLike
    upper: ArrayLike
    velocity: ArrayLike
    acceleration: ArrayLike
    stop_acceleration: ArrayLike | None = None
    jerk: ArrayLike | None = None
    continuous: ArrayLike | None = None


def limits_of(spec: RobotSpec) -> JointLimits:
    """Those of a robot's joints."""
    lower, upper = spec.bounds()
    jerk, stop, acceleration = spec.array("jerk"), spec.array("stop_acceleration"), spec.array("acceleration")
    return JointLimits(
        lower,
        upper,
        spec.array("velocity"),
        acceleration,
        stop_acceleration=np.where(np.isnan(stop), acceleration, stop),
        jerk=np.where(np.isnan(jerk), np.inf, jerk),
        continuous=spec.turning,
    )


class JointLimiter:
    """Turns any sequence of targets into commands inside the limits.

    Every step makes new arrays and writes into none of the old ones: whoever has read one may keep it.

    Args:
        limits: of the joints.
        period: nominal control period [s].
        min_period: shortest period that may come [s]; default `period`. The braking bound is exact for it.

    Raises:
        ValueError: wrong shapes, limits that are not finite and positive, lower >= upper, period < min_period.

    Source: exact discrete-time joint limiter of the bridge's specification, extended to varying periods (module text).
    Where we differ: the asked velocity brakes towards a target instead of (target - q) / T alone, which after a step
    runs over the target and swings about it for ever; targets that the joint can follow are met all the same.
    """

    def __init__(self, limits: JointLimits, *, period: float, min_period: float | None = None) -> None:
        self.lower, self.upper = np.array(limits.lower, float), np.array(limits.upper, float)
        shape = self.lower.shape
        self.max_velocity = np.array(limits.velocity, float)
        self.max_acceleration = np.array(limits.acceleration, float)
        stop, jerk, continuous = limits.stop_acceleration, limits.jerk, limits.continuous
        self.stop_acceleration = np.array(self.max_acceleration if stop is None else stop, float)
        self.max_jerk = np.full(shape, np.inf) if jerk is None else np.array(jerk, float)
        self.continuous = np.zeros(shape, bool) if continuous is None else np.array(continuous, bool)
        self.period = float(period)
        self.min_period = self.period if min_period is None else float(min_period)
        self._check(shape)
        self._turns = bool(self.continuous.any())
        self._jerky = bool(np.isfinite(self.max_jerk).any())
        self._coast = self.max_velocity**2 / (2.0 * self.max_acceleration)
        self._few: ScalarLimits | None = None
        if not self._jerky and len(shape) == 1 and shape[0] <= FEW:
            rows = (self.lower, self.upper, self.max_velocity, self.max_acceleration, self._coast, self.continuous)
            lower, upper, velocity, acceleration, coast, turning = (row.tolist() for row in rows)
            self._few = ScalarLimits(lower, upper, velocity, acceleration, coast, turning, self.min_period)
        self.reset(np.where(self.continuous, 0.0, np.clip(0.0, self.lower, self.upper)))

    def _check(self, shape: tuple[int, ...]) -> None:
        named = (
            ("upper", self.upper),
            ("velocity", self.max_velocity),
            ("acceleration", self.max_acceleration),
            ("stop_acceleration", self.stop_acceleration),
            ("jerk", self.max_jerk),
            ("continuous", self.continuous),
        )
        for name, value in named:
            if value.shape != shape:
                raise ValueError(f"{name} has shape {value.shape}, expected {shape} like lower: one entry per joint")
        for name, value in named[1:4]:
            if not (np.isfinite(value).all() and (value > 0.0).all()):
                raise ValueError(f"{name} is {value}, expected finite numbers > 0; write the limit of the data sheet")
        if not (self.max_jerk > 0.0).all():
            raise ValueError(f"jerk is {self.max_jerk}, expected numbers > 0; leave it out for none")
        if (self.stop_acceleration < self.max_acceleration).any():
            raise ValueError("stop_acceleration is below acceleration; braking must not be weaker than moving")
        bound = ~self.continuous
        if not (np.isfinite(self.lower[bound]).all() and np.isfinite(self.upper[bound]).all()):
            raise ValueError("lower and upper must be finite; mark joints that turn for ever as continuous")
        if not (self.lower < self.upper)[bound].all():
            raise ValueError(f"lower {self.lower} must be below upper {self.upper}; swap them")
        if not 0.0 < self.min_period <= self.period < np.inf:
            raise ValueError(f"min_period {self.min_period} must be in (0, period = {self.period}]")
        self.lower = np.where(self.continuous, -np.inf, self.lower)
        self.upper = np.where(self.continuous, np.inf, self.upper)

    def reset(self, position: ArrayLike, velocity: ArrayLike | None = None) -> None:
        """Take (position, velocity) as the previous command; velocity None = at rest.

        Args:
            position: (J,) [rad]; outside the limits only motion towards the inside is allowed.
            velocity: (J,) [rad/s].

        Raises:
            ValueError: wrong shape or a value that is not finite.
        """
        position = np.array(position, float)
        velocity = np.zeros_like(position) if velocity is None else np.array(velocity, float)
        for name, value in (("position", position), ("velocity", velocity)):
            if value.shape != self.lower.shape or not np.isfinite(value).all():
                raise ValueError(f"{name} is {value}, expected {self.lower.shape} finite numbers")
        self.position, self.velocity = position, velocity
        self._before, self._length = (position, velocity), 1.0
        self.moved = 0.0  # length of the last period that was stepped; the reader may set it to 0
        self._target = position
        self._nowhere = np.zeros(position.shape, bool)
        self.at_limit = self.at_rate = self._nowhere

    @property
    def acceleration(self) -> Array:
        """(J,) of the last step [rad/s^2]; 0 after a reset."""
        return (self.velocity - self._before[1]) / self._length

    @property
    def still(self) -> bool:
        """Whether the commanded velocity is zero, up to 1e-4."""
        return all(abs(speed) < 1e-4 for speed in self.velocity.tolist())

    @property
    def stop_seconds(self) -> float:
        """Time that `brake` takes from here [s]."""
        return float((np.abs(self.velocity) / self.stop_acceleration).max())

    def step(self, target: ArrayLike, period: Period | None = None) -> Array:
        """Next position command.

        Args:
            target: (J,) wanted position [rad]; a joint whose target is not finite brakes.
            period: length of this period [s]; default the nominal one.

        Returns:
            (J,) position command; `velocity`, `acceleration` belong to it, `at_limit` and `at_rate` say which joints
            the position limit and the velocity, acceleration or jerk limits held back.

        Raises:
            ValueError: a period below min_period, or a wrong shape.
        """
        period = self._period(period)
        target = np.asarray(target, float)
        if target.shape != self.lower.shape:
            raise ValueError(f"target has shape {target.shape}, expected {self.lower.shape}: one entry per joint")
        if self._few is not None and isinstance(period, float):
            place = self.position.tolist()
            speed, at_limit, at_rate, kept = self._few.track(
                target.tolist(), self._target.tolist(), place, self.velocity.tolist(), period
            )
            self._note(at_limit, at_rate)
            self._target = np.array(kept)
            return self._take_few(speed, place, period)
        known = np.isfinite(target)
        target = np.where(known, target, self.position)
        with np.errstate(over="ignore", invalid="ignore"):
            error, moved = target - self.position, target - self._target
            if self._turns:
                error, moved = short_way(error, self.continuous), short_way(moved, self.continuous)
            own = moved / period  # the target's own speed; one that no joint could have is a jump
            own = np.where(np.abs(own) <= self.max_velocity, own, 0.0)
            lag = error - own * period
            wanted = own + np.sign(lag) * self._approach(np.abs(lag), period)
        wanted = np.where(known, wanted, 0.0)
        self._target = target
        return self._move(wanted, self.position, self.position, period)

    def step_velocity(
        self, target: ArrayLike, measured: ArrayLike, *, under_way: Array, period: Period | None = None
    ) -> Array:
        """Next velocity command; the distance to the limits is taken from the measured position.

        Args:
            target: (J,) wanted velocity [rad/s]; a joint whose target is not finite brakes.
            measured: (J,) measured position [rad].
            under_way: (2, J) farthest ways up, >= 0, and down, <= 0, that earlier commands may still bring the joints
                from there [rad].
            period: length of this period [s]; default the nominal one.

        Returns:
            (J,) velocity command. Velocity and acceleration limits hold exactly, position limits as far as the robot
            does what it is told.

        Raises:
            ValueError: a period below min_period, or a wrong shape.
        """
        period = self._period(period)
        target = np.asarray(target, float)
        if target.shape != self.lower.shape:
            raise ValueError(f"target has shape {target.shape}, expected {self.lower.shape}: one entry per joint")
        self.position = np.array(measured, float)
        if self._few is not None and isinstance(period, float):
            wanted = np.where(np.isfinite(target), target, 0.0).tolist()
            high, low = ((self.position + way).tolist() for way in under_way)
            speed, at_limit, at_rate = self._few.bound(wanted, high, low, self.velocity.tolist(), period)
            self._note(at_limit, at_rate)
            self._take_few(speed, self.position.tolist(), period)
            return self.velocity
        high, low = self.position + under_way[0], self.position + under_way[1]
        self._move(np.where(np.isfinite(target), target, 0.0), high, low, period)
        return self.velocity

    def brake(self, period: Period | None = None) -> Array:
        """One period of braking at `stop_acceleration`; returns the (J,) position command."""
        period = self._period(period)
        change = self.stop_acceleration * period
        speed = np.sign(self.velocity) * np.maximum(np.abs(self.velocity) - change, 0.0)
        self.at_limit = self.at_rate = self._nowhere
        return self._take(speed, period)

    def follow(self, velocity: Array, period: Period | None = None) -> Array:
        """Replace the last step by one with `velocity` (J,), which the caller took from between it and the full brake.

        The allowed velocities form an interval, so everything between two allowed ones is allowed.
        """
        period = self._period(period)
        self.position, self.velocity = self._before
        return self._take(velocity, period)

    def braking_velocity(self, period: Period | None = None) -> Array:
        """Velocity (J,) that the last step would have had under a full brake at `max_acceleration` [rad/s]."""
        before = self._before[1]
        change = self.max_acceleration * self._period(period)
        return np.sign(before) * np.maximum(np.abs(before) - change, 0.0)

    def _period(self, period: Period | None) -> Period:
        if period is None:
            return self.period
        if isinstance(period, float) and self.min_period <= period < np.inf:
            return period
        if not np.all((period >= self.min_period * (1.0 - 1e-9)) & np.isfinite(period)):
            raise ValueError(f"period is {period}, expected finite seconds >= min_period = {self.min_period}")
        return np.maximum(period, self.min_period)

    def _move(self, wanted: Array, highest: Array, lowest: Array, period: Period) -> Array:
        v, a, h = self.velocity, self.max_acceleration, self.min_period
        change = a * period
        reach = self.max_velocity * period + self._coast  # from here on the velocity limit decides
        up = stopping_speed(np.minimum(self.upper - highest, reach), a, period, h)
        down = -stopping_speed(np.minimum(lowest - self.lower, reach), a, period, h)
        fast, slow = np.minimum(self.max_velocity, v + change), np.maximum(-self.max_velocity, v - change)
        high = np.maximum(np.minimum(fast, up), v - change)
        low = np.minimum(np.maximum(slow, down), v + change)
        asked = self._soft(wanted, period) if self._jerky else wanted
        speed = np.minimum(np.maximum(asked, low), high)
        tiny = 1e-12 + 1e-9 * self.max_velocity
        off = np.abs(speed - wanted) > tiny
        self.at_limit = off & (((wanted > up) & (up <= fast)) | ((wanted < down) & (down >= slow)))
        self.at_rate = off & ~self.at_limit
        return self._take(speed, period)

    def _approach(self, distance: Array, period: Period) -> Array:
        """Speed at which to close on a target; with a jerk limit at half the brake and fading out near the target."""
        far = self.max_velocity * period + self._coast
        if not self._jerky:
            return stopping_speed(np.minimum(distance, far), self.max_acceleration, period, self.min_period)
        gain = np.minimum(0.5 * self.max_jerk / self.max_acceleration, 1.0 / period)  # jerk of v = gain * d stays below
        knee = self.max_acceleration / (4.0 * gain * gain)  # here both curves agree in speed and slope
        speed = stopping_speed(np.minimum(distance - knee, 2.0 * far), 0.5 * self.max_acceleration, period, period)
        return np.where(distance < 2.0 * knee, gain * distance, speed)

    def _soft(self, wanted: Array, period: Period) -> Array:
        """Asked velocity within the jerk limit; acceleration fades out before the velocity limit is reached."""
        j = np.where(np.isfinite(self.max_jerk), self.max_jerk, 1e300)
        a, change = self.acceleration, j * period
        room = np.maximum(self.max_velocity - self.velocity, 0.0), np.maximum(self.velocity + self.max_velocity, 0.0)
        h = self.min_period
        high = np.minimum(np.minimum(self.max_acceleration, a + change), stopping_speed(room[0], j, period, h))
        low = np.maximum(np.maximum(-self.max_acceleration, a - change), -stopping_speed(room[1], j, period, h))
        high, low = np.maximum(high, a - change), np.minimum(low, a + change)
        return self.velocity + np.clip((wanted - self.velocity) / period, low, high) * period

    def _note(self, at_limit: list[bool], at_rate: list[bool]) -> None:
        self.at_limit = np.array(at_limit) if True in at_limit else self._nowhere
        self.at_rate = np.array(at_rate) if True in at_rate else self._nowhere

    def _take_few(self, speed: list[float], place: list[float], period: float) -> Array:
        """As `_take`, from the place (J,) of the step before, without an array operation."""
        self._before, self._length, self.moved = (self.position, self.velocity), period, period
        self.position = np.array([q + v * period for q, v in zip(place, speed)])
        self.velocity = np.array(speed)
        return self.position

    def _take(self, speed: Array, period: Period) -> Array:
        self._before, self._length = (self.position, self.velocity), period
        self.moved = period if isinstance(period, float) else 0.0
        self.position = self.position + speed * period
        self.velocity = speed
        return self.position
