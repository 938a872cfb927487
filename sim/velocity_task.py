"""What worlds share in which a robot on legs follows a velocity command: its trunk, the command, the errors."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from robot_rl.sim.arrays import constant, cross
from robot_rl.sim.world import Reset, View
from robot_rl.types import Array
from robot_rl.types.options import Interval

FALL_PENALTY = 5.0


class VelocityTask:
    """Base of such worlds; `view.task` holds "command" (N, 3) [m/s, m/s, rad/s], "phase" (N,) of the gait in [0, 1) at
    the start, "speed_error" and "turn_error" (N,), sums over the steps so far.

    Args:
        forward: range of the commanded forward speed [m/s].
        side: range of the commanded speed to the left [m/s].
        turn: range of the commanded yaw rate [rad/s].

    Raises:
        ValueError: a range is not two numbers in order.

    Attributes:
        bounds: of success: mean errors over the episode of the velocity [m/s] and of the yaw rate [rad/s].
    """

    control_hz = 50.0
    episode_steps = 500
    bounds: tuple[float, float]

    def __init__(self, forward: Interval, side: Interval, turn: Interval) -> None:
        for label, pair in (("forward", forward), ("side", side), ("turn", turn)):
            if len(pair) != 2 or not pair[0] <= pair[1]:
                raise ValueError(f"{label} is {list(pair)}, expected [low, high] with low <= high")
        self._low = np.array([forward[0], side[0], turn[0]])
        self._high = np.array([forward[1], side[1], turn[1]])

    def _start(self, xp: ModuleType, command: Array, chance: Array, joint: Array, height: Any, push: Array) -> Reset:
        """Any heading and a new command.

        Args:
            xp: array namespace.
            command: (n, 3) in [0, 1), where in the ranges.
            chance: (n, 2) in [0, 1), of heading and phase.
            joint: (n, J) positions [rad].
            height: (n, 1) or () of the trunk [m].
            push: (n, 6) velocity of the trunk.
        """
        low, high = constant(self._low, joint), constant(self._high, joint)
        half = math.pi * chance[:, :1]
        zero = xp.zeros_like(half)
        trunk = [zero, zero, zero + height, xp.cos(half), zero, zero, xp.sin(half)]
        task = {"command": low + (high - low) * command, "phase": chance[:, 1]}
        return Reset(
            qpos=xp.concat([*trunk, joint], axis=1),
            qvel=xp.concat([push, xp.zeros_like(joint)], axis=1),
            ctrl=joint,
            task={**task, "speed_error": zero[:, 0], "turn_error": zero[:, 0]},
        )

    def update(self, view: View) -> None:
        """Add this step's tracking errors to the sums of the episode."""
        speed, turn = tracking_error(view)
        for key, value in (("speed_error", speed), ("turn_error", turn)):
            view.task[key] = view.task[key] + view.xp.astype(value, view.task[key].dtype)

    def reward(self, view: View) -> Array:
        """Sum (N,) float32 of `reward_terms`."""
        return view.total(self.reward_terms(view))

    def reward_terms(self, view: View) -> dict[str, Array]:
        """The weighted parts of the reward, name -> (N,)."""
        raise NotImplementedError(f"{type(self).__name__}.reward_terms is missing")

    def terminated(self, view: View) -> Array:
        """(N,) bool, fallen."""
        raise NotImplementedError(f"{type(self).__name__}.terminated is missing")

    def success(self, view: View) -> Array:
        """(N,) bool, the full episode is over and its mean tracking errors are below the bounds."""
        steps = view.xp.astype(view.step, view.task["speed_error"].dtype)
        speed, turn = self.bounds
        good = (view.task["speed_error"] < speed * steps) & (view.task["turn_error"] < turn * steps)
        return good & (view.step >= self.episode_steps) & ~self.terminated(view)


def gravity(view: View) -> Array:
    """Unit vector of gravity in the frame of the trunk.

    Args:
        view: state of N environments.

    Returns:
        (N, 3); (0, 0, -1) when level.
    """
    w, x, y, z = (view.qpos[:, i] for i in range(3, 7))
    columns = [2.0 * (w * y - x * z), -2.0 * (w * x + y * z), 2.0 * (x * x + y * y) - 1.0]
    return view.xp.stack(columns, axis=1)


def trunk_velocity(view: View) -> Array:
    """Velocity of the trunk in its own frame.

    Args:
        view: state of N environments.

    Returns:
        (N, 3) [m/s].
    """
    w, u = view.qpos[:, 3:4], -view.qpos[:, 4:7]  # the conjugate quaternion turns world into trunk
    v = view.qvel[:, 0:3]
    return v + 2.0 * cross(u, cross(u, v) + w * v)


def tracking_error(view: View) -> tuple[Array, Array]:
    """Distance of the motion from the command.

    Args:
        view: state of N environments.

    Returns:
        (N,) length of the horizontal velocity error [m/s] and (N,) size of the yaw-rate error [rad/s].
    """
    xp, command = view.xp, view.task["command"]
    gap = trunk_velocity(view)[:, :2] - command[:, :2]
    return xp.sqrt(xp.sum(gap**2, axis=1)), xp.abs(view.qvel[:, 5] - command[:, 2])
