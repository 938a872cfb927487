"""Checks of the measured state against the RobotSpec; every finding is a fault code."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from operator import gt

import numpy as np
from numpy.typing import ArrayLike

from robot_rl.legs import gravity
from robot_rl.real.core.motion import Seen
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import PD, RobotSpec
from robot_rl.real.core.turning import differences
from robot_rl.real.robot import RobotState

UNTRUSTED = frozenset(
    {"state_stale", "state_never", "state_nonfinite", "state_name_missing", "state_jump", "state_frozen"}
)

GONE = UNTRUSTED | {"controller_gone", "controller_changed"}
"""After these nobody knows what the next command would be read as: the driver may have been restarted."""


WINDOW = 0.02
"""Seconds over which the acceleration of legs is averaged: the peak of a step on the ground is shorter."""


class StateMonitor:
    """Judges one state per tick and remembers the last good one.

    A handful of joints is looked at in plain floats: a call into NumPy costs as much as all of them together.

    Args:
        spec: of the robot.
        settings: of the supervisor.

    Attributes:
        numbers: code -> what was measured and what was allowed, of the last finding.
        place: (J,) positions of the last good state as floats; () without one.
        seen: its stamp [s], positions and velocities as floats, -inf without one.
    """

    def __init__(self, spec: RobotSpec, settings: SafetySettings) -> None:
        self._spec = spec
        self._joints = len(spec.joints)
        self._speed, self._effort = spec.array("velocity"), spec.array("effort")
        self._lower, self._upper = (bound.tolist() for bound in spec.hard_bounds())
        self._turning = spec.turning
        self.place: Sequence[float] = ()
        self.seen: Seen = -inf, (), ()
        self.adopt(settings)
        self._last: RobotState | None = None
        self._good_since: float | None = None
        self._pushes, self._push = 0, 0.0
        self._acceleration = spec.array("acceleration") if spec.mode == PD else None
        self._pace: tuple[float, np.ndarray] | None = None  # stamp and velocities at the begin of the window
        self._tilt = spec.legs.tilt if spec.legs is not None else None
        self._imu = spec.imu
        self.numbers: dict[str, str] = {}
        self._forgiven: list[float] = []  # how far outside each joint may be after a reset

    @property
    def last(self) -> RobotState | None:
        """Newest state that could be believed."""
        return self._last

    def with_numbers(self, codes: Sequence[str]) -> tuple[str, ...]:
        """These codes with their numbers; no state at all is told of elsewhere."""
        found = (code for code in codes if code != "state_never")
        return tuple(f"{code} ({self.numbers[code]})" if code in self.numbers else code for code in found)

    def check(self, state: RobotState | None, now: float) -> list[str]:
        """Fault codes of this tick, the gravest first; empty when all is well.

        Args:
            state: newest measurement, may be one that was given before.
            now: [s].
        """
        codes = self._judge(state, now)
        if codes:
            self._good_since = None
        elif self._good_since is None:
            self._good_since = now
        return codes

    def age(self, now: float) -> float:
        """Seconds since the last believable state was acquired; infinite without one."""
        return inf if self._last is None else now - self._last.stamp

    def is_settled(self, now: float) -> bool:
        """True when all has been well for the settle time."""
        return self._good_since is not None and now - self._good_since >= self._set.settle_time - 1e-9

    def resting(self) -> bool:
        """True when the last state is at rest."""
        return self._last is not None and bool((np.abs(self._last.velocity) <= self._set.rest_velocity).all())

    def forgive(self) -> None:
        """Called at a reset: joints that stand outside their limits may stay there, but go no further out."""
        if self._last is not None:
            self._forgiven = [max(way, 0.0) for way in self._outside(self.place)]

    def adopt(self, settings: SafetySettings) -> None:
        """Take over changed timeouts."""
        self._set = settings
        given = self._spec.array("limit_slack")
        self._slack = np.where(np.isnan(given), settings.limit_slack, given).tolist()
        self._fastest = (settings.velocity_factor * self._speed).tolist()
        self._bounds = list(zip(self._lower, self._upper, self._slack, self._fastest))
        self._farthest = (settings.jump_factor * self._speed).tolist()  # per second
        self._strongest = (settings.velocity_factor * self._effort).tolist()

    def relearn(self) -> None:
        """Called at a reset: the next state need not be near the last one."""
        self._last, self.place, self.seen = None, (), (-inf, (), ())

    def _outside(self, place: Sequence[float]) -> list[float]:
        return [max(low - q, q - high) for low, q, high in zip(self._lower, place, self._upper)]

    def _judge(self, state: RobotState | None, now: float) -> list[str]:
        last = self._last
        if state is None:
            if last is None:
                return ["state_never"]
            return [self._stale(self.age(now))] if self.age(now) > self._set.state_timeout else []
        position, velocity = np.asarray(state.position, float), np.asarray(state.velocity, float)
        if position.shape != (self._joints,) or velocity.shape != (self._joints,):
            return ["state_name_missing"]
        place, speed = position.tolist(), velocity.tolist()
        if not all(map(isfinite, (*place, *speed, state.stamp))):
            return ["state_nonfinite"]
        if state.stamp > now + self._set.future_tolerance:
            self.numbers["clock_jump"] = f"a state is stamped {1e3 * (state.stamp - now):.0f} ms ahead of now"
            return ["clock_jump"]
        codes = []
        if now - state.stamp > self._set.state_timeout:
            codes.append(self._stale(now - state.stamp))
        if last is None or state.stamp > last.stamp:
            codes += self._check_motion(state, place, speed)
            if self._acceleration is not None:
                codes += self._check_jolt(state.stamp, velocity, self._acceleration)
        if self._tilt is not None and self._imu in state.sensors:
            codes += self._check_fall(state.sensors[self._imu][:4], self._tilt)
        return codes + self._limits(state, place, speed)

    def _check_motion(self, state: RobotState, place: list[float], speed: list[float]) -> list[str]:
        last = self._last
        if last is not None:
            elapsed = max(state.stamp - last.stamp, 1.0 / self._set.rate)
            way = [abs(gone) for gone in differences(place, self.place, self._turning)]
            most = [pace * elapsed for pace in self._farthest]
            if any(map(gt, way, most)):
                self._tell("state_jump", way, most, f"rad further within {1e3 * elapsed:.0f} ms")
                return ["state_jump"]  # the last good state stays: the jump persists until a reset
        self._last, self.place, self.seen = state, place, (state.stamp, place, speed)
        force = self._spec.force
        if force is not None and state.wrench is not None:
            self._push = float(np.linalg.norm(state.wrench[:3]))
            self._pushes = self._pushes + 1 if not self._push <= self._set.force_factor * force else 0
        return []

    def _check_jolt(self, stamp: float, velocity: np.ndarray, bound: np.ndarray) -> list[str]:
        begin = self._pace
        if begin is not None and stamp - begin[0] < WINDOW - 1e-6:
            return []
        self._pace = stamp, velocity
        if begin is None or stamp - begin[0] > 5.0 * WINDOW:
            return []
        seen, most = np.abs(velocity - begin[1]) / (stamp - begin[0]), self._set.velocity_factor * bound
        if not (seen > most).any():
            return []
        self._tell("acceleration_measured", seen, most, "rad/s2 of acceleration")
        return ["acceleration_measured"]

    def _check_fall(self, orientation: np.ndarray, most: float) -> list[str]:
        if not np.isfinite(orientation).all() or not orientation.any():
            self.numbers["state_nonfinite"] = f"{self._imu} has no orientation: {orientation.tolist()}"
            return ["state_nonfinite"]
        tilt = float(np.arccos(np.clip(-gravity(orientation)[2], -1.0, 1.0)))
        if tilt <= most:
            return []
        self.numbers["fallen"] = f"the trunk is {tilt:.2f} rad from upright, allowed {most:g}"
        return ["fallen"]

    def _limits(self, state: RobotState, place: list[float], velocity: list[float]) -> list[str]:
        codes: list[str] = []
        if self._forgiven:
            codes = self._beyond(place, velocity)
        else:  # one pass while all is well
            for q, v, (low, high, slack, fastest) in zip(place, velocity, self._bounds):
                if low - q > slack or q - high > slack or abs(v) > fastest:
                    codes = self._beyond(place, velocity)
                    break
        if state.effort is not None:
            effort = np.asarray(state.effort, float).tolist()
            if any(not abs(e) <= most for e, most in zip(effort, self._strongest, strict=True)):
                self._tell("effort_measured", np.abs(effort), self._strongest, "N m of effort")
                codes.append("effort_measured")
        if self._pushes >= 3 and self._spec.force is not None:
            most = self._set.force_factor * self._spec.force
            self.numbers["force"] = f"{self._push:.1f} N in 3 states, allowed {most:g}"
            codes.append("force")
        return codes

    def _beyond(self, place: list[float], velocity: list[float]) -> list[str]:
        """Which of the limits are left, and how far; what a reset has forgiven shrinks as the joints come back."""
        codes, outside, allowed = [], self._outside(place), self._slack
        if self._forgiven:
            self._forgiven = [min(before, max(way, 0.0)) for before, way in zip(self._forgiven, outside)]
            allowed = [more + slack for more, slack in zip(self._forgiven, self._slack)]
            if not any(self._forgiven):
                self._forgiven = []
        if any(map(gt, outside, allowed)):
            self._tell("limit_measured", outside, allowed, "rad outside its limits")
            codes.append("limit_measured")
        speed = [abs(v) for v in velocity]
        if any(map(gt, speed, self._fastest)):
            self._tell("velocity_measured", speed, self._fastest, "rad/s fast")
            codes.append("velocity_measured")
        return codes

    def _stale(self, age: float) -> str:
        self.numbers["state_stale"] = f"{1e3 * age:.0f} ms old, allowed {1e3 * self._set.state_timeout:g}"
        return "state_stale"

    def _tell(self, code: str, seen: ArrayLike, most: ArrayLike, what: str) -> None:
        seen, most = np.asarray(seen), np.asarray(most)
        joint = int(np.argmax(np.nan_to_num(seen - most, nan=inf)))
        self.numbers[code] = f"{self._spec.names[joint]} is {seen[joint]:.3f} {what}, allowed {most[joint]:.3f}"
