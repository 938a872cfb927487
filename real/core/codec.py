"""Actions in [-1, 1] to joint commands and back, and robot states to the policy's state vector."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robot_rl.real.core.spec import EFFORT, PD, POSITION, TWIST, VELOCITY, RobotSpec, SpecError
from robot_rl.real.robot import RobotState

STATE = ("joint_positions", "joint_velocities")
"""Observation of a RobotSpec that lists none."""


class ActionCodec:
    """The action mapping of a RobotSpec, in both directions.

    `absolute`: -1 and 1 are the ends of a joint's range inside its margin; `delta`: a move of `scale` [rad] from the
    last command; `velocity`: a speed of `scale` [rad/s], which a controller of positions (pd too) gets as last
    command + speed / rate; `effort`: `scale` [N m].

    Args:
        spec: of the robot.
        rate: decisions per second.

    Raises:
        SpecError: a mapping that does not suit the controller or the joints.

    Attributes:
        low: (J,) physical value of the action -1.
        high: (J,) physical value of the action 1.
    """

    def __init__(self, spec: RobotSpec, rate: float) -> None:
        self.rate, self.mapping = rate, spec.action.mapping
        _check_mapping(spec)
        self._from_last = spec.mode in (POSITION, PD) and self.mapping != "absolute"
        self._lower, self._upper = spec.bounds()
        if self.mapping == "absolute":
            if not np.isfinite(self._lower).all():
                raise SpecError("action.mapping 'absolute' needs position limits; use delta or velocity")
            self.low, self.high = self._lower, self._upper
        else:
            self.high = np.array(spec.action.scale or (1.0,), float) * np.ones(len(spec.joints))
            self.low = -self.high
        self._middle, self._half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)

    def command(self, action: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Command (J,) of an action (J,) in [-1, 1] after the command `last` (J,)."""
        value = self._middle + self._half * action
        if not self._from_last:
            return value
        move = value if self.mapping == "delta" else value / self.rate
        return np.clip(last + move, self._lower, self._upper)

    def action(self, command: np.ndarray, last: np.ndarray) -> np.ndarray:
        """(J,) float32 action in [-1, 1] that a command (J,) after `last` (J,) stands for."""
        value = np.asarray(command, float)
        if self._from_last:
            value = (value - last) * (1.0 if self.mapping == "delta" else self.rate)
        return np.clip((value - self._middle) / self._half, -1.0, 1.0).astype(np.float32)


class StateCodec:
    """The observation list of a RobotSpec as one vector, in the order of `real.port.SpecPort`.

    Keys: `joint_positions`, `joint_velocities`, `joint_efforts`, `last_action` (executed, in [-1, 1]), `wrench`, and
    names of sensors and task variables. What a robot does not report is zero.

    Args:
        spec: of the robot.
        sizes: length of the reading of every sensor in the list.

    Raises:
        SpecError: a key that is neither.

    Attributes:
        names: (S,) of the components.
    """

    def __init__(self, spec: RobotSpec, sizes: Mapping[str, int] | None = None) -> None:
        self.spec, self.keys = spec, spec.observation or STATE
        joints = len(spec.joints)
        fixed = dict.fromkeys(("joint_positions", "joint_velocities", "joint_efforts", "last_action"), joints)
        sizes = {**fixed, "wrench": 6, **(sizes or {})}
        for key in self.keys:
            if key not in sizes:
                raise SpecError(f"observation lists {key!r}, expected one of {', '.join([*sizes, *spec.sensors])}")
        self.sizes = {key: sizes[key] for key in self.keys}
        self.names = tuple(f"{key}_{i}" for key in self.keys for i in range(sizes[key]))

    def vector(self, state: RobotState, last_action: np.ndarray) -> np.ndarray:
        """(S,) float32.

        Args:
            state: measured.
            last_action: (J,) executed in the step before.

        Raises:
            ValueError: a sensor's reading has another length than at the start.
        """
        known = {
            "joint_positions": state.position,
            "joint_velocities": state.velocity,
            "joint_efforts": state.effort,
            "wrench": state.wrench,
            "last_action": last_action,
        }
        parts = []
        for key, size in self.sizes.items():
            value = state.sensors.get(key) if known.get(key) is None else known[key]
            part = np.zeros(size) if value is None else np.asarray(value, float).reshape(-1)
            if part.shape != (size,):
                raise ValueError(f"sensor {key!r} gave {part.size} numbers, expected {size}")
            parts.append(part)
        return np.concatenate(parts).astype(np.float32)


def _check_mapping(spec: RobotSpec) -> None:
    """Refuse an action mapping that the controller's mode cannot take.

    Raises:
        SpecError: names both.
    """
    wanted = {VELOCITY: ("velocity",), TWIST: ("velocity",), EFFORT: ("effort",)}
    allowed = wanted.get(spec.mode, ("absolute", "delta", "velocity"))
    if spec.action.mapping not in allowed:
        raise SpecError(
            f"action.mapping is {spec.action.mapping!r}, but {spec.command_mode} takes {' or '.join(allowed)}"
        )
