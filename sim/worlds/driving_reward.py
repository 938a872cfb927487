"""The simple driving reward: new route completion times penalty factors, and nothing else to sum up."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from robot_rl.types import Array

FROUDE = 10.0**0.5
"""Speeds and times of a car at scale 1:10 (0.30 m wheelbase) per those of a full-size one; accelerations are alike."""


@dataclass(frozen=True)
class DrivingLimits:
    """What counts as speeding, rough and off-centre; the published limits of full-size cars at the scale of ours.

    Attributes:
        speed: limit [m/s].
        speed_margin: excess [m/s] at which the factor is 0: 2.23 full size.
        brake: least longitudinal acceleration [m/s^2].
        accelerate: largest one.
        side: largest lateral acceleration.
        jerk_along: largest longitudinal jerk [m/s^3]: 4.13 full size.
        jerk: largest size of the jerk: 8.37 full size.
        yaw_rate: [rad/s]: 0.95 full size.
        yaw_acceleration: [rad/s^2]: 1.93 full size.
        off_centre: distance from the centre line [m] that counts.
        off_centre_s: seconds of it until the factor applies: 3 full size.
    """

    speed: float = 3.0
    speed_margin: float = 2.23 / FROUDE
    brake: float = -4.05
    accelerate: float = 2.40
    side: float = 4.89
    jerk_along: float = 4.13 * FROUDE
    jerk: float = 8.37 * FROUDE
    yaw_rate: float = 0.95 * FROUDE
    yaw_acceleration: float = 1.93 * FROUDE**2
    off_centre: float = 0.3
    off_centre_s: float = 3.0 / FROUDE


class SimpleReward:
    """r = (new route completion [%]) x p_speed x p_comfort x p_centre, and -1 where the car leaves the track.

    p_speed = max(0, 1 - excess / margin); p_comfort = 1 - exceeded / 12, of six comfort limits; p_centre = 0.5 while
    the car has been off centre too long. Completion counts up to the farthest point so far: nothing is paid for driving
    the same piece twice. Without penalties a lap pays exactly 100. What the factors remember lies in the environments'
    own variables, one of each per environment.

    Args:
        length: of the route [m].
        dt: of a control step [s].
        limits: see `DrivingLimits`.

    Source: Jaeger et al., CaRL: Learning Scalable Planning Policies with Simple Rewards (autonomousvision/CaRL,
    simple_reward.py). Where we differ: limits at the scale of the car; no lights, signs or other traffic here; timers
    per environment (the source keeps them in the class); episodes go on behind a lap.
    """

    def __init__(self, length: float, dt: float, limits: DrivingLimits) -> None:
        self._length, self._dt, self._limits = length, dt, limits

    def start(self, zero: Array, xp: ModuleType) -> dict[str, Array]:
        """Variables of environments that stand still at their start; `zero` (n,)."""
        return {
            "motion": xp.stack([zero] * 5, axis=1),  # speed along, speed sideways, yaw rate, accelerations of both
            "off_centre_s": zero,
            "credited": zero,
            "factor": zero + 1.0,
            "gain": zero,
        }

    def update(
        self, task: dict[str, Array], xp: ModuleType, *, along: Array, side: Array, yaw_rate: Array, offset: Array
    ) -> None:
        """Advance the variables by one step.

        Args:
            task: with "best" [m] and those of `start`; changed in place.
            xp: array namespace.
            along: (N,) forward speed [m/s].
            side: (N,) speed to the left.
            yaw_rate: (N,) [rad/s].
            offset: (N,) distance to the left of the centre line [m].
        """
        limits, before, dt = self._limits, task["motion"], self._dt
        # accelerations in the car's own turning frame
        a_along = (along - before[:, 0]) / dt - yaw_rate * side
        a_side = (side - before[:, 1]) / dt + yaw_rate * along
        jerk_along, jerk_side = (a_along - before[:, 3]) / dt, (a_side - before[:, 4]) / dt
        exceeded = [
            xp.abs(jerk_along) > limits.jerk_along,
            (jerk_along**2 + jerk_side**2) > limits.jerk**2,
            (a_along > limits.accelerate) | (a_along < limits.brake),
            xp.abs(a_side) > limits.side,
            xp.abs(yaw_rate) > limits.yaw_rate,
            xp.abs(yaw_rate - before[:, 2]) / dt > limits.yaw_acceleration,
        ]
        zero = xp.zeros_like(along)
        count = zero
        for limit in exceeded:
            count = count + xp.astype(limit, zero.dtype)
        off = xp.abs(offset) > limits.off_centre
        task["off_centre_s"] = xp.where(off, task["off_centre_s"] + dt, zero)
        speeding = xp.clip(1.0 - xp.clip(along - limits.speed, 0.0, None) / limits.speed_margin, 0.0, None)
        centre = xp.where(task["off_centre_s"] > limits.off_centre_s, zero + 0.5, zero + 1.0)
        task["factor"] = speeding * (1.0 - count / 12.0) * centre
        task["motion"] = xp.stack([along, side, yaw_rate, a_along, a_side], axis=1)
        task["gain"] = 100.0 * (task["best"] - task["credited"]) / self._length
        task["credited"] = task["best"] + 0.0

    def value(self, task: dict[str, Array], left: Array, xp: ModuleType) -> Array:
        """(N,) rewards; `left` (N,) bool: the car is off the track."""
        return xp.where(left, xp.zeros_like(task["gain"]) - 1.0, task["gain"] * task["factor"])
