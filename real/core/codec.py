"""Actions in [-1, 1] to joint commands and back, and robot states to the policy's state vector."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robot_rl.real.core.spec import VELOCITY, RobotSpec, SpecError
from robot_rl.real.robot import RobotState
from robot_rl.types import IOSpec

STATE = ("position", "velocity")
"""Observation of a RobotSpec that lists none."""


class ActionCodec:
    """The action mapping of a RobotSpec.

    `absolute`: -1 and 1 are the ends of a joint's range inside its margin (-pi and pi when continuous); for a velocity
    controller they are its largest speeds. `delta`: a move of `scale` [rad] from the last command, by default what the
    largest speed covers in one period. `velocity`: a speed of `scale` [rad/s], by default the largest one; a position
    controller gets last command + speed * period.

    Args:
        spec: of the robot.
        period: of the decisions [s].

    Raises:
        SpecError: a delta on a velocity controller.

    Attributes:
        low: (J,) physical value of the action -1.
        high: (J,) physical value of the action 1.
        names: one per action.
        units: `rad` or `rad/s`.
    """

    def __init__(self, spec: RobotSpec, period: float) -> None:
        self.spec, self.period, self.mapping = spec, period, spec.action.mapping
        if spec.mode == VELOCITY and self.mapping == "delta":
            raise SpecError("action.mapping is 'delta', but the controller takes velocities; use velocity or absolute")
        speed = spec.array("velocity")
        scale = np.broadcast_to(np.array(spec.action.scale, float), speed.shape) if spec.action.scale else None
        self._lower, self._upper = spec.bounds()
        if self.mapping == "absolute" and spec.mode != VELOCITY:
            turning = ~np.isfinite(self._lower)
            self.low, self.high = np.where(turning, -np.pi, self._lower), np.where(turning, np.pi, self._upper)
            names, unit = spec.names, "rad"
        elif self.mapping == "delta":
            self.high = speed * period if scale is None else scale
            self.low, names, unit = -self.high, tuple(f"{name}_delta" for name in spec.names), "rad"
        else:
            self.high = speed if scale is None else scale
            self.low, names, unit = -self.high, tuple(f"{name}_velocity" for name in spec.names), "rad/s"
        self._middle, self._half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        self.names, self.units = tuple(names), (unit,) * len(names)

    def command(self, action: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Command (J,) of an action (J,) after the command `last` (J,)."""
        value = self._middle + self._half * np.clip(np.asarray(action, float), -1.0, 1.0)
        if self.spec.mode == VELOCITY or self.mapping == "absolute":
            return value
        move = value if self.mapping == "delta" else value * self.period
        return np.clip(last + move, self._lower, self._upper)

    def action(self, command: np.ndarray, last: np.ndarray) -> np.ndarray:
        """(J,) float32 action in [-1, 1] that a command (J,) after `last` (J,) stands for."""
        value = np.asarray(command, float)
        if self.spec.mode != VELOCITY and self.mapping != "absolute":
            value = (value - last) / (1.0 if self.mapping == "delta" else self.period)
        return np.clip((value - self._middle) / self._half, -1.0, 1.0).astype(np.float32)


class StateCodec:
    """The observation list of a RobotSpec as one vector.

    Keys: `position` and `velocity` of the joints, `effort`, `command` (what was sent last), `wrench`, and names of
    sensors. What a robot does not report is zero.

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
        fixed = {"position": joints, "velocity": joints, "effort": joints, "command": joints, "wrench": 6}
        sizes = {**fixed, **(sizes or {})}
        for key in self.keys:
            if key not in sizes:
                known = ", ".join([*fixed, *spec.sensors])
                raise SpecError(f"observation lists {key!r}, expected one of {known}")
        self.sizes = {key: sizes[key] for key in self.keys}
        self.names: tuple[str, ...] = ()
        for key in self.keys:
            if sizes[key] == joints and key in ("position", "velocity", "effort", "command"):
                self.names += tuple(f"{name}_{key}" for name in spec.names)
            else:
                self.names += tuple(f"{key}_{i}" for i in range(sizes[key]))

    def vector(self, state: RobotState, command: np.ndarray) -> np.ndarray:
        """(S,) float32.

        Args:
            state: measured.
            command: (J,) sent last.

        Raises:
            ValueError: a sensor's reading has another length than at the start.
        """
        parts = []
        for key, size in self.sizes.items():
            value = command if key == "command" else getattr(state, key, None)
            if value is None:
                value = state.sensors.get(key)
            part = np.zeros(size) if value is None else np.asarray(value, float).reshape(-1)
            if part.shape != (size,):
                raise ValueError(f"sensor {key!r} gave {part.size} numbers, expected {size}")
            parts.append(part)
        return np.concatenate(parts).astype(np.float32)


def passport(actions: ActionCodec, states: StateCodec, images: Mapping[str, tuple[int, ...]] | None = None) -> IOSpec:
    """IOSpec of a robot whose policy sees the state vector and images (H, W, 3)."""
    obs: dict[str, tuple[tuple[int, ...], str]] = {"state": ((len(states.names),), "float32")}
    obs |= {f"image.{name}": (tuple(shape), "uint8") for name, shape in (images or {}).items()}
    return IOSpec(
        obs=obs,
        action_names=actions.names,
        action_low=tuple(actions.low.tolist()),
        action_high=tuple(actions.high.tolist()),
        action_units=actions.units,
        control_hz=1.0 / actions.period,
        obs_names=states.names,
    )
