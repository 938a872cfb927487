"""Effort commands inside the limits: bounded and rate-limited, with a wall at the ends of the range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.robot import RobotState

Array = np.ndarray
COAST = 0.5
"""Seconds that a brake may take beyond the time the effort needs to fade."""


@dataclass(frozen=True)
class Moment:
    """What a stop depends on.

    Args:
        state: fresh and believed; None = none is.
        done: at rest, or its time is over.
        last_stop: nothing will be sent after it.
        armed: no stop at all: the robot waits for a first command.
    """

    state: RobotState | None
    done: bool
    last_stop: bool = False
    armed: bool = False


class EffortLimiter:
    """Turns any sequence of wanted efforts into efforts that the joints can bear.

    Per joint, with T the period and (q, qd) the measured state:

    - |tau| <= tau_max, and the asked effort changes by at most `effort_rate` * T per period;
    - faster than the velocity limit, effort in the direction of motion is zero;
    - inside the margin before a limit, effort towards the limit is zero, and a wall pushes back with
      k * penetration + d * (speed towards the limit), on top of what is asked and up to tau_max.

    The wall is no proof: where the robot stands is for physics to decide. `limit_measured` of the supervisor is.

    Args:
        spec: of the robot. k is the joint's kp, or tau_max at the end of the margin; d its kd, or tau_max at the
            velocity limit; `effort_rate` [N m/s] defaults to tau_max in 0.1 s.
        period: nominal control period [s].

    Attributes:
        effort: (J,) last command [N m].
        position: (J,) measured [rad].
        velocity: (J,) measured [rad/s].
        at_limit: (J,) bool, where the wall or the velocity limit decided.
        at_rate: (J,) bool, where the effort or its rate was cut.

    Source: specification of the bridge, limiter; the wall follows the idea of Polymetis' safety controller.
    """

    def __init__(self, spec: RobotSpec, *, period: float) -> None:
        self.period, self.min_period = float(period), 0.5 * float(period)
        self._lower, self._upper = spec.bounds()
        hard = spec.hard_bounds()
        self._largest, self._speed = spec.array("effort"), spec.array("velocity")
        rate = spec.array("effort_rate")
        self._rate = np.where(np.isnan(rate), 10.0 * self._largest, rate)
        margin, ends = np.ones(len(self._upper)), np.isfinite(hard[1])
        margin[ends] = np.maximum(hard[1][ends] - self._upper[ends], 1e-3)
        kp, kd = spec.array("kp"), spec.array("kd")
        self._stiffness = np.where(kp > 0.0, kp, self._largest / margin)
        self._damping = np.where(kd > 0.0, kd, self._largest / self._speed)
        self._asked = np.zeros(len(self._largest))
        self.reset(np.zeros(len(self._largest)))

    @property
    def command(self) -> Array:
        """(J,) what is sent."""
        return self.effort

    @property
    def still(self) -> bool:
        """Whether no effort is commanded."""
        return bool((np.abs(self.effort) <= 1e-6 * self._largest).all())

    @property
    def stop_seconds(self) -> float:
        """Time that a stop from here may take [s]."""
        return float((np.abs(self._asked) / self._rate).max()) + COAST

    @property
    def healthy(self) -> bool:
        """Whether the last command is finite."""
        return bool(np.isfinite(self.effort).all())

    def reset(self, position: Any, velocity: Any = None) -> None:
        """No effort, at a measured (J,) position [rad]."""
        self.position = np.array(position, float)
        self.velocity = np.zeros_like(self.position) if velocity is None else np.array(velocity, float)
        self.effort, self._asked = np.zeros_like(self.position), np.zeros_like(self.position)
        self.moved = 0.0
        self._stilled = True  # has come to rest since it was last driven
        self.at_limit = self.at_rate = np.zeros(self.position.shape, bool)

    def step(self, target: Any, position: Array, velocity: Array, period: float | None = None) -> Array:
        """Next effort command.

        Args:
            target: (J,) wanted effort [N m]; what is not finite counts as 0.
            position: (J,) measured [rad].
            velocity: (J,) measured [rad/s].
            period: length of this period [s]; default the nominal one.

        Returns:
            (J,) efforts.
        """
        self._stilled = False
        wanted = np.asarray(target, float)
        wanted = np.where(np.isfinite(wanted), wanted, 0.0)
        return self._send(wanted, np.asarray(position, float), np.asarray(velocity, float), period)

    def stop(self, moment: Moment, period: float) -> Array:
        """One period of a stop: damp the measured motion until it has come to rest, then fade to zero."""
        self._stilled |= moment.done or moment.armed or moment.state is None
        if self._stilled or moment.state is None:
            return self.brake(None, None, period)
        return self.brake(moment.state.position, moment.state.velocity, period)

    def brake(self, position: Array | None, velocity: Array | None, period: float | None = None) -> Array:
        """One period of braking: damping against the measured motion, or fading to zero without a state to trust."""
        if position is None or velocity is None:
            period = self.period if period is None else period
            change = self._rate * period
            self._asked = np.sign(self.effort) * np.maximum(np.abs(self.effort) - change, 0.0)
            self.effort, self.moved = self._asked.copy(), period
            return self.effort
        return self._send(-self._damping * velocity, position, velocity, period)

    def _send(self, wanted: Array, position: Array, velocity: Array, period: float | None) -> Array:
        period = self.period if period is None else float(period)
        over, under = position - self._upper, self._lower - position
        fast = np.abs(velocity) > self._speed
        allowed = np.where(fast & (wanted * velocity > 0.0), 0.0, wanted)
        allowed = np.where(over > 0.0, np.minimum(allowed, 0.0), allowed)
        allowed = np.where(under > 0.0, np.maximum(allowed, 0.0), allowed)
        change = self._rate * period
        asked = np.clip(np.clip(allowed, -self._largest, self._largest), self._asked - change, self._asked + change)
        # an effort towards the limit goes at once, however fast it had been asked for
        asked = np.where(over > 0.0, np.minimum(asked, 0.0), asked)
        asked = np.where(under > 0.0, np.maximum(asked, 0.0), asked)
        asked = np.where(fast & (asked * velocity > 0.0), 0.0, asked)
        wall = np.where(over > 0.0, -self._stiffness * over - self._damping * np.maximum(velocity, 0.0), 0.0)
        wall += np.where(under > 0.0, self._stiffness * under - self._damping * np.minimum(velocity, 0.0), 0.0)
        self._asked = asked
        self.effort = np.clip(asked + wall, -self._largest, self._largest)
        self.at_limit = (allowed != wanted) | (wall != 0.0)
        self.at_rate = (np.abs(asked - allowed) > 1e-12) & ~self.at_limit
        self.position, self.velocity, self.moved = position.copy(), velocity.copy(), period
        return self.effort
