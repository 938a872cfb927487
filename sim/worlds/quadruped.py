"""Make a four-legged robot follow a velocity command: position targets for twelve joints, 50 times a second.

The gait clock is part of the observation, which makes a scripted trot memoryless and gives a learned gait a beat to
follow if it wants to.
"""

from __future__ import annotations

import math
from types import ModuleType

import array_api_compat

from robot_rl.sim.arrays import constant
from robot_rl.sim.velocity_task import FALL_PENALTY, VelocityTask, gravity, tracking_error, trunk_velocity
from robot_rl.sim.world import Draw, Reset, View, asset
from robot_rl.types import Array
from robot_rl.types.options import Interval

LEGS = ("fl", "fr", "rl", "rr")
NOMINAL = (0.0, 0.8, -1.6)
"""Hip, thigh and calf angle [rad] of a standing leg; the foot is then below the hip."""
RANGE = (0.5, 0.8, 0.9)
"""The actions -1 and 1 move the target of a hip, thigh and calf this far [rad] from the nominal angle."""
STIFFNESS, DAMPING, TORQUE = 50.0, 1.2, 30.0
"""Position servo of every joint [N*m/rad, N*m*s/rad, N*m], as in the model."""
PERIOD = 0.32
"""Seconds per gait cycle."""
FALL_HEIGHT, FALL_UPRIGHT = 0.16, 0.5
"""The robot has fallen when its trunk is below this height [m] or the cosine of its tilt below this number."""

_HIPS = ((0.19, 0.055), (0.19, -0.055), (-0.19, 0.055), (-0.19, -0.055))
_SIDE = (1.0, -1.0, 1.0, -1.0)
_OFFSET, _LINK = 0.08, 0.21  # hip axis to leg plane, and length of thigh and calf [m]
_STAND = 2.0 * _LINK * math.cos(NOMINAL[1])  # height of the hips above the feet in the nominal pose
_FOOT = 0.023
_JOINTS = ("hip", "thigh", "calf")


class Quadruped(VelocityTask):
    """Walk with a commanded forward speed, side speed and yaw rate.

    Reward per step: exp(-|v - v*|^2 / 0.1) + 0.5 exp(-(w - w*)^2 / 0.1) with the horizontal velocity v [m/s] and yaw
    rate w [rad/s] of the trunk, less 1.0 vz^2, 0.02 |roll and pitch rate|^2, 1.0 |tilt|^2 (horizontal part of the unit
    gravity vector), 1e-4 |torque|^2, 0.02 |change of action|^2, and less 5 for a fall, which ends the episode.
    Success: at the end of the full 10 s the mean of |v - v*| over the episode is below 0.25 m/s and that of |w - w*|
    below 0.4 rad/s.

    Args:
        forward: range of the commanded forward speed [m/s].
        side: range of the commanded speed to the left [m/s].
        turn: range of the commanded yaw rate [rad/s].

    Raises:
        ValueError: a range is not two numbers in order.

    Source: reward terms after Rudin et al., Learning to Walk in Minutes (2021), table 4; weights ours.
    """

    name = "quadruped"
    bounds = (0.25, 0.40)
    action_names: tuple[str, ...] = tuple(f"{leg}_{joint}" for leg in LEGS for joint in _JOINTS)
    action_low: tuple[float, ...] = tuple(centre - reach for _ in LEGS for centre, reach in zip(NOMINAL, RANGE))
    action_high: tuple[float, ...] = tuple(centre + reach for _ in LEGS for centre, reach in zip(NOMINAL, RANGE))
    action_units: tuple[str, ...] = ("rad",) * 12
    obs_names: tuple[str, ...] = (
        *("vx", "vy", "vz", "roll_rate/4", "pitch_rate/4", "yaw_rate/4", "gravity_x", "gravity_y", "gravity_z"),
        *("command_vx", "command_vy", "command_yaw_rate", "sin_phase", "cos_phase"),
        *(f"{leg}_{joint}" for leg in LEGS for joint in _JOINTS),
        *(f"{leg}_{joint}_speed/20" for leg in LEGS for joint in _JOINTS),
        *(f"previous_{leg}_{joint}" for leg in LEGS for joint in _JOINTS),
    )
    proprio: tuple[str, ...] = obs_names[3:]
    """All but the velocity of the trunk, which no sensor of a robot measures."""
    cameras: tuple[str, ...] = ("track", "head")

    def __init__(
        self,
        forward: Interval = (0.3, 1.0),
        side: Interval = (-0.2, 0.2),
        turn: Interval = (-0.5, 0.5),
    ) -> None:
        super().__init__(forward, side, turn)

    def mjcf(self) -> str:
        """The model as one MJCF string."""
        return asset("quadruped/quadruped.xml")

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Stand in the nominal pose with joints up to 0.05 rad off, any heading, a new command and gait phase.

        Args:
            draw: random numbers of the environments that reset.
            n: how many those are.
            xp: array namespace.

        Returns:
            Initial states.
        """
        command, chance, noise = draw.uniform(3), draw.uniform(2), draw.uniform(12, low=-0.05, high=0.05)
        still = xp.zeros_like(noise[:, :6])
        return self._start(xp, command, chance, self._nominal(noise) + noise, _STAND + _FOOT + 0.005, still)

    def control(self, view: View, action: Array) -> Array:
        """Joint position targets [rad] about the nominal pose.

        Args:
            view: state of N environments.
            action: (N, 12) in [-1, 1].

        Returns:
            (N, 12).
        """
        xp = view.xp
        return self._nominal(action) + xp.clip(action, -1.0, 1.0) * self._reach(action)

    def observe(self, view: View) -> Array:
        """Motion and tilt of the trunk, command, gait clock, joints and last action.

        Args:
            view: state of N environments.

        Returns:
            (N, 50) float32 in the order of `obs_names`: trunk velocity in its own frame [m/s], its rates over
            4 rad/s, unit gravity in its frame, command [m/s, m/s, rad/s], sine and cosine of the gait phase, joint
            angles less nominal [rad], joint speeds over 20 rad/s, previous action.
        """
        xp = view.xp
        phase = 2.0 * math.pi * (view.task["phase"] + xp.astype(view.step, xp.float32) / (PERIOD * self.control_hz))
        clock = xp.stack([xp.sin(phase), xp.cos(phase)], axis=1)
        joint = view.qpos[:, 7:] - self._nominal(view.qpos)
        parts = [trunk_velocity(view), view.qvel[:, 3:6] / 4.0, gravity(view), view.task["command"], clock]
        parts += [joint, view.qvel[:, 6:] / 20.0, view.action]
        return xp.concat([xp.astype(part, xp.float32) for part in parts], axis=1)

    def reward_terms(self, view: View) -> dict[str, Array]:
        """The weighted parts of the reward by name.

        Args:
            view: state of N environments.

        Returns:
            name -> (N,).
        """
        xp = view.xp
        speed, turn = tracking_error(view)
        error = view.ctrl - view.qpos[:, 7:]
        torque = xp.clip(STIFFNESS * error - DAMPING * view.qvel[:, 6:], -TORQUE, TORQUE)
        tilt = gravity(view)[:, :2]
        return {
            "velocity": xp.exp(-(speed**2) / 0.1),
            "yaw_rate": 0.5 * xp.exp(-(turn**2) / 0.1),
            "bounce": -1.0 * trunk_velocity(view)[:, 2] ** 2,
            "roll_pitch_rate": -0.02 * xp.sum(view.qvel[:, 3:5] ** 2, axis=1),
            "tilt": -1.0 * xp.sum(tilt**2, axis=1),
            "torque": -1e-4 * xp.sum(torque**2, axis=1),
            "action_rate": -0.02 * xp.sum((view.action - view.previous_action) ** 2, axis=1),
            "fall": -FALL_PENALTY * xp.astype(self.terminated(view), view.qpos.dtype),
        }

    def terminated(self, view: View) -> Array:
        """The robot has fallen: trunk below 0.16 m or tilted by more than 60 degrees.

        Args:
            view: state of N environments.

        Returns:
            (N,) bool.
        """
        return (view.qpos[:, 2] < FALL_HEIGHT) | (-gravity(view)[:, 2] < FALL_UPRIGHT)

    def expert(self, state: Array) -> Array:
        """Trot: diagonal legs step together, at the beat of the gait clock.

        Stance feet move backwards under the hips with the commanded velocity, swinging feet return in an arc, and the
        lengths of the stance legs level the trunk. Joint angles follow from inverse kinematics.

        Args:
            state: (N, 50) as `observe` gives it.

        Returns:
            (N, 12) action in [-1, 1].

        Source: Raibert, Legged Robots That Balance (1986): symmetric sweep of the stance foot under the hip.
        """
        xp = array_api_compat.array_namespace(state)
        hips = constant(_HIPS, state)
        side = constant(_SIDE, state)[None, :]
        velocity, rate, tilt, command = state[:, 0:2], state[:, 3:6] * 4.0, state[:, 6:8], state[:, 9:12]
        phase = xp.atan2(state[:, 12], state[:, 13])[:, None] / (2.0 * math.pi)
        shift = constant((0.0, 0.5, 0.5, 0.0), state)[None, :]
        leg = phase + shift
        leg = leg - xp.floor(leg)
        swing = leg >= DUTY
        along = xp.where(swing, (leg - DUTY) / (1.0 - DUTY), leg / DUTY)

        arm_x, arm_y = hips[None, :, 0], hips[None, :, 1] + _OFFSET * side
        # Feet slip a little: ask for somewhat more where the trunk is slower than commanded.
        want_x = command[:, 0:1] + FEEDBACK * (command[:, 0:1] - velocity[:, 0:1]) - command[:, 2:3] * arm_y
        want_y = command[:, 1:2] + FEEDBACK * (command[:, 1:2] - velocity[:, 1:2]) + command[:, 2:3] * arm_x
        # From half a step ahead to half a step behind in stance; back along half a cosine in swing.
        sweep = xp.where(swing, -0.5 * xp.cos(math.pi * along), 0.5 - along) * (DUTY * PERIOD)
        x, y = want_x * sweep + BIAS, want_y * sweep
        level = arm_x * (LEVEL * tilt[:, 0:1] + LEVEL_RATE * rate[:, 1:2])
        level = level + arm_y * (LEVEL * tilt[:, 1:2] - LEVEL_RATE * rate[:, 0:1])
        z = xp.where(swing, LIFT * xp.sin(math.pi * along), SINK - level) - HEIGHT
        angle = leg_angles(x, y + _OFFSET * side, z, side, xp)
        target = xp.reshape(angle, (-1, 12))
        return xp.clip((target - self._nominal(state)) / self._reach(state), -1.0, 1.0)

    def _nominal(self, like: Array) -> Array:
        return constant(NOMINAL * 4, like)[None, :]

    def _reach(self, like: Array) -> Array:
        return constant(RANGE * 4, like)[None, :]


FEEDBACK, LIFT, HEIGHT, SINK, BIAS, DUTY, LEVEL, LEVEL_RATE = 0.13, 0.107, 0.295, 0.009, -0.11, 0.77, 0.114, 0.074
"""The scripted trot, found by a cross-entropy search on the reward: share of the lacking speed that is added, foot lift
[m], leg length in swing and how much less it is in stance [m], feet ahead of the hips [m], share of the period on the
ground, and change of a stance leg's length per lever and tilt [1] and per lever and tilt rate [s]."""


def leg_angles(x: Array, y: Array, z: Array, side: Array, xp: ModuleType) -> Array:
    """Inverse kinematics of the legs: joint angles that bring a foot to a place relative to its hip joint.

    Args:
        x: (N, 4) forward [m].
        y: (N, 4) to the left [m].
        z: (N, 4) upwards [m], negative.
        side: (1, 4) 1 for left legs and -1 for right ones.
        xp: array namespace.

    Returns:
        (N, 4, 3) hip, thigh and calf [rad]; a place out of reach gives the nearest one on the same line.
    """
    down = xp.sqrt(xp.clip(y**2 + z**2 - _OFFSET**2, 1e-6, None))
    hip = xp.atan2(z, y) - xp.atan2(-down, _OFFSET * side + 0.0 * y)
    hip = xp.atan2(xp.sin(hip), xp.cos(hip))
    distance = xp.clip(xp.sqrt(x**2 + down**2), 0.08, 2.0 * _LINK - 0.002)
    bend = xp.acos(distance / (2.0 * _LINK))  # equal links: the knee angle is twice the angle at the hip
    return xp.stack([hip, xp.atan2(-x, down) + bend, -2.0 * bend], axis=2)
