"""Joint targets with gains: what is bounded is the torque that they imply, and the range that they lie in."""

from __future__ import annotations

from typing import Any

import numpy as np

from robot_rl.real.core.limiter_effort import COAST, Moment
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.robot import RobotState

Array = np.ndarray
HOME, REST = "home", "rest"


class PdLimiter:
    """Turns any sequence of wanted targets into targets and gains whose torque the joints can bear.

    The driver computes tau = kp (target - q) - kd qd. Per joint, with (q, qd) the measured state and the card's gains:

    - the target lies in the joint's range, and |tau| <= tau_max: the target is moved to where both hold;
    - faster than the velocity limit, tau does not act in the direction of motion;
    - where no target in the range has such a torque (a joint outside its range, or a very fast one), both gains are
      scaled down until it has.

    How far a target leads its joint is not bounded: it is how such a policy asks for torque. A stop lets the legs down,
    by damping (kp = 0) or by going to the rest pose first; nothing here ever brakes a joint and holds it.

    Args:
        spec: of the robot.
        period: nominal control period [s].

    Attributes:
        target: (J,) last target [rad].
        gains: (2, J) last kp [N m/rad] and kd [N m s/rad].
        position: (J,) measured [rad].
        velocity: (J,) measured [rad/s].
        at_limit: (J,) bool, where the range or the torque moved the target.
        at_rate: (J,) bool, where the velocity limit did.

    Source: issue "Your robot" 2.4; the law is the joint-level controller of Hwangbo et al., Learning agile and dynamic
    motor skills for legged robots.
    """

    def __init__(self, spec: RobotSpec, *, period: float) -> None:
        assert spec.legs is not None
        self.period, self.min_period = float(period), 0.5 * float(period)
        self._lower, self._upper = spec.hard_bounds()
        self._largest, self._speed = spec.array("effort"), spec.array("velocity")
        self._kp, self._kd = spec.array("kp"), spec.array("kd")
        self._legs, self._home = spec.legs, np.array(spec.home, float)
        self._rest = np.array(spec.rest or spec.home, float)
        self.reset(np.zeros(len(self._kp)))

    @property
    def command(self) -> Array:
        """(J,) what is sent."""
        return self.target

    @property
    def still(self) -> bool:
        """Whether nothing but damping is commanded."""
        return not self.gains[0].any()

    @property
    def stop_seconds(self) -> float:
        """Time that a stop from here may take [s]."""
        return (self._legs.stop_seconds if self._legs.stop == "sit" else 0.0) + COAST

    def ready(self, target: Array, tolerance: float) -> bool:
        """Whether a policy may begin: the way to the home pose has been gone, and its first target is one to stand on.

        One whose stiffness asks for more than a joint can bear comes of a policy that reads the robot wrongly: the G1's
        asks for .27 of it at most at home, NVIDIA's H1 controller, which takes gravity for speed, for 3.9 times it.

        Args:
            target: (J,) wanted first [rad].
            tolerance: largest distance of a joint from home [rad].
        """
        near = (np.abs(self.position - self._home) <= tolerance).all()
        wild = (self._kp * np.abs(target - self.position) > self._largest).any()
        return self._goal == HOME and self._way >= 1.0 and bool(near) and not wild

    def reset(self, position: Any, velocity: Any = None) -> None:
        """Damping, at a measured (J,) position [rad]."""
        self.position = np.array(position, float)
        self.velocity = np.zeros_like(self.position) if velocity is None else np.array(velocity, float)
        self.moved = 0.0
        self._goal, self._from, self._way = "", self.position, 0.0
        self._damp()

    def step(self, target: Any, position: Array, velocity: Array, period: float | None = None) -> Array:
        """Next targets and gains.

        Args:
            target: (J,) wanted [rad]; a joint whose target is not finite is damped.
            position: (J,) measured [rad].
            velocity: (J,) measured [rad/s].
            period: length of this period [s]; default the nominal one.

        Returns:
            (J,) targets; `gains` belong to them.
        """
        self._measure(position, velocity, period)
        self._goal = ""
        return self._send(np.asarray(target, float))

    def stop(self, moment: Moment, period: float) -> Array:
        """One period of standing up and staying so while armed; else of letting the legs down.

        Without a state to trust, or before the process ends, they are let down by damping.
        """
        state = moment.state
        if state is None:
            self.moved, self._goal, self._way = period, REST, 1.0  # whoever comes back is damped, too
            return self._damp()
        if moment.armed:
            return self._go(HOME, self._home, self._legs.stand_seconds, state, period)
        sitting = self._goal != REST or self._way < 1.0
        if self._legs.stop == "sit" and sitting and not moment.last_stop:
            return self._go(REST, self._rest, self._legs.stop_seconds, state, period)
        self._measure(state.position, state.velocity, period)
        return self._damp()

    def _go(self, goal: str, pose: Array, seconds: float, state: RobotState, period: float) -> Array:
        self._measure(state.position, state.velocity, period)
        if self._goal != goal:
            self._goal, self._from, self._way = goal, self.position, 0.0
        self._way = min(self._way + period / seconds, 1.0)
        return self._send(self._from + self._way * (pose - self._from))

    def _measure(self, position: Array, velocity: Array, period: float | None) -> None:
        self.position, self.velocity = np.array(position, float), np.array(velocity, float)
        self.moved = self.period if period is None else float(period)

    def _damp(self) -> Array:
        """No stiffness; a joint too fast for its card's damping gets as much as its effort allows."""
        speed = np.maximum(np.abs(self.velocity), 1e-9)
        self.target = np.clip(self.position, self._lower, self._upper)
        self.gains = np.stack([np.zeros_like(self._kp), np.minimum(self._kd, self._largest / speed)])
        self.at_limit = self.at_rate = np.zeros(self.position.shape, bool)
        return self.target

    def _send(self, wanted: Array) -> Array:
        known = np.isfinite(wanted)
        with np.errstate(over="ignore", invalid="ignore"):
            push = self._kd * self.velocity  # tau = kp (target - q) - push
            high, low = self._largest.copy(), -self._largest
            fast = np.abs(self.velocity) > self._speed
            high = np.where(fast & (self.velocity > 0.0), 0.0, high)
            low = np.where(fast & (self.velocity < 0.0), 0.0, low)
            nearest, farthest = self.position + (low + push) / self._kp, self.position + (high + push) / self._kp
            target = np.where(known, wanted, self.position)
            target = np.clip(np.clip(target, nearest, farthest), self._lower, self._upper)
            torque = self._kp * (target - self.position) - push
            # the range has the last word, and then the gains give way
            scale = np.minimum(1.0, self._largest / np.maximum(np.abs(torque), 1e-9))
            wrong = fast & (torque * self.velocity > 0.0)  # back into the range it may not be thrown
        kp = np.where(known & ~wrong, self._kp * scale, 0.0)
        speed = np.maximum(np.abs(self.velocity), 1e-9)
        kd = np.where(known & ~wrong, self._kd * scale, np.minimum(self._kd, self._largest / speed))
        target = np.where(known, target, np.clip(self.position, self._lower, self._upper))
        self.target, self.gains = target, np.stack([kp, kd])
        moved = np.abs(np.where(known, wanted, np.inf) - target) > 1e-9
        self.at_rate = moved & fast
        self.at_limit = moved & ~fast
        return self.target


def torque(target: Array, gains: Array, position: Array, velocity: Array) -> Array:
    """(J,) torque [N m] that a driver makes of a command in `pd` mode.

    Args:
        target: (J,) [rad].
        gains: (2, J) kp and kd.
        position: (J,) of the joints [rad].
        velocity: (J,) of the joints [rad/s].
    """
    return gains[0] * (target - position) - gains[1] * velocity
