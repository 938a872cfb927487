"""What a policy sees and does on a robot: measured joints to observation, action to joint commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from robot_rl.real.core.spec import POSITION, RobotSpec, check_mapping
from robot_rl.types import IOSpec

UNITS = {"absolute": "rad", "delta": "rad", "velocity": "rad/s", "effort": "N m"}
_PARTS = ("joint_positions", "joint_velocities", "last_action")


class Port(Protocol):
    """Observation and action terms of one robot; `robot_rl.sim.port.WorldPort` takes them from a world."""

    io: IOSpec
    external: tuple[str, ...]

    def reset(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> None:
        """Take the measured robot (J,) as the start."""
        ...

    def observe(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Observation for a policy, with a batch axis of 1."""
        ...

    def act(self, action: np.ndarray) -> np.ndarray:
        """(1, A) action in [-1, 1] -> (J,) command in the mode of the robot."""
        ...


class SpecPort:
    """Port that a RobotSpec describes by itself.

    The observation "state" is the concatenation of `spec.observation` (default joint positions and velocities), each
    one of `joint_positions`, `joint_velocities`, `last_action` or the name of a sensor. Actions in [-1, 1] become

    - `absolute`: middle of the joint's range + action * half of it,
    - `delta`: last command + action * scale [rad],
    - `velocity`: action * scale [rad/s]; in position mode integrated from the last command,
    - `effort`: action * scale [N m].

    Args:
        spec: of the robot.
        control_hz: decisions per second.
        widths: length of each sensor's vector that the observation names.

    Raises:
        ValueError: an observation key that is no part and no sensor, or a mapping that does not suit the mode.
    """

    def __init__(self, spec: RobotSpec, control_hz: float, *, widths: Mapping[str, int] | None = None) -> None:
        self.spec, self._rate = spec, control_hz
        self._keys = spec.observation or _PARTS[:2]
        count = len(spec.joints)
        sizes = {**dict.fromkeys(_PARTS, count), **(widths or {})}
        unknown = [key for key in self._keys if key not in sizes]
        if unknown:
            raise ValueError(f"observation has {unknown}, expected {', '.join(sizes)}")
        mapping = spec.action.mapping
        check_mapping(spec)
        self.external = tuple(key for key in self._keys if key not in _PARTS)
        lower, upper = spec.bounds()
        scale = np.array(spec.action.scale or (1.0,), float) * np.ones(count)
        self._lower, self._upper = lower, upper
        if mapping == "absolute":
            if not np.isfinite(lower).all():
                raise ValueError("action.mapping absolute needs position limits; use delta or velocity")
            self._scale, low, high, unit = 0.5 * (upper - lower), lower, upper, "rad"
        else:
            self._scale, low, high, unit = scale, -scale, scale, UNITS[mapping]
        self.io = IOSpec(
            obs={"state": ((sum(sizes[key] for key in self._keys),), "float32")},
            action_names=tuple(f"{name}_{mapping}" for name in spec.names),
            action_low=tuple(low.tolist()),
            action_high=tuple(high.tolist()),
            action_units=(unit,) * count,
            control_hz=control_hz,
            obs_names=tuple(f"{key}_{i}" for key in self._keys for i in range(sizes[key])),
        )
        self._command = np.zeros(count)
        self._action = np.zeros(count)

    def reset(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> None:
        """Begin commands at the measured position."""
        self._command, self._action = np.array(position, float), np.zeros(len(position))

    def observe(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """{"state": (1, S) float32}."""
        parts = {"joint_positions": position, "joint_velocities": velocity, "last_action": self._action, **task}
        return {"state": np.concatenate([np.asarray(parts[key], float) for key in self._keys])[None].astype(np.float32)}

    def act(self, action: np.ndarray) -> np.ndarray:
        """(1, A) in [-1, 1] -> (J,) positions [rad], velocities [rad/s] or efforts [N m]."""
        self._action = np.clip(np.asarray(action, float)[0], -1.0, 1.0)
        move = self._action * self._scale
        mapping = self.spec.action.mapping
        if self.spec.mode != POSITION:
            return move
        if mapping == "absolute":
            self._command = 0.5 * (self._lower + self._upper) + move
        else:
            self._command = np.clip(
                self._command + (move if mapping == "delta" else move / self._rate), self._lower, self._upper
            )
        return self._command.copy()
