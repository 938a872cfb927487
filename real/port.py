"""What a policy sees and does on a robot: measured joints to observation, action to joint commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from robot_rl.real.cameras import WHOLE, crop_pixels, resize_picture
from robot_rl.real.core.codec import STATE, ActionCodec
from robot_rl.real.core.spec import RobotSpec
from robot_rl.types import IOSpec, Obs, Port

UNITS = {"absolute": "rad", "delta": "rad", "velocity": "rad/s", "effort": "N*m"}
_PARTS = ("joint_positions", "joint_velocities", "last_action")
IMAGE = "image."
"""Begin of the observation keys that are pictures; the camera's name follows."""


@runtime_checkable
class JudgePort(Port, Protocol):
    """A port that also knows what the state is worth; `robot_rl.sim.robot_task.WorldTask` asks a world."""

    def judge(self) -> tuple[float, bool, bool]:
        """Reward, true end and success of the state that was observed last."""
        ...


@runtime_checkable
class TrainedPort(Port, Protocol):
    """A port whose policy was trained for one robot in particular."""

    neutral: Mapping[str, np.ndarray]
    """What an observation is at rest where that is not zero: key -> (1, ...)."""

    def check(self, spec: RobotSpec) -> None:
        """Refuse, with a ValueError, a robot that would do something else with its commands."""
        ...


class SpecPort:
    """Port that a RobotSpec describes by itself.

    The observation "state" is the concatenation of `spec.observation` (default joint positions and velocities), each
    one of `joint_positions`, `joint_velocities`, `last_action`. What actions become, see `ActionCodec`.

    Args:
        spec: of the robot.
        control_hz: decisions per second.

    Raises:
        ValueError: an observation key that is none of these, or a mapping that does not suit the mode.
    """

    cameras: tuple[str, ...] = ()
    external: tuple[str, ...] = ()

    def __init__(self, spec: RobotSpec, control_hz: float) -> None:
        self._keys, count, mapping = spec.observation or STATE, len(spec.joints), spec.action.mapping
        unknown = [key for key in self._keys if key not in _PARTS]
        if unknown:
            raise ValueError(f"observation has {unknown}, expected {', '.join(_PARTS)}")
        self._codec = codec = ActionCodec(spec, control_hz)
        self.io = IOSpec(
            obs={"state": ((count * len(self._keys),), "float32")},
            action_names=tuple(f"{name}_{mapping}" for name in spec.names),
            action_low=tuple(codec.low.tolist()),
            action_high=tuple(codec.high.tolist()),
            action_units=(UNITS[mapping],) * count,
            control_hz=control_hz,
            obs_names=tuple(f"{key}_{i}" for key in self._keys for i in range(count)),
        )
        self._command = np.zeros(count)
        self._action = np.zeros(count)

    def reset(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> None:
        """Begin commands at the measured position."""
        self._command, self._action = np.array(position, float), np.zeros(len(position))

    def observe(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> Obs:
        """{"state": (1, S) float32}."""
        parts = {"joint_positions": position, "joint_velocities": velocity, "last_action": self._action, **task}
        return {"state": np.concatenate([np.asarray(parts[key], float) for key in self._keys])[None].astype(np.float32)}

    def act(self, action: np.ndarray) -> np.ndarray:
        """(1, A) in [-1, 1] -> (J,) positions [rad], velocities [rad/s] or efforts [N m]."""
        self._action = np.clip(np.asarray(action, float)[0], -1.0, 1.0)
        self._command = self._codec.command(self._action, self._command)
        return self._command.copy()


class SightedPort:
    """A port whose policy also looks: the robot's pictures, cut as in training and in its size, join the observation.

    Args:
        port: observation and action terms without pictures.
        io: of the checkpoint; its keys "image.<camera>" name the cameras, their shapes the sizes. Without "state" the
            policy sees pictures only.
        cameras: that the robot has.

    Raises:
        ValueError: a camera that the robot has not, or pictures that are not (H, W, 3) uint8.
    """

    def __init__(self, port: Port, io: IOSpec, cameras: Iterable[str]) -> None:
        self._port = port
        self._sizes = {key: shape for key, (shape, _) in io.obs.items() if key.startswith(IMAGE)}
        missing = sorted({key.removeprefix(IMAGE) for key in self._sizes} - set(cameras))
        if missing:
            has = ", ".join(cameras) or "none"
            raise ValueError(f"the policy looks through {', '.join(missing)}; the cameras of the RobotSpec are: {has}")
        for key, shape in self._sizes.items():
            if len(shape) != 3 or shape[2] != 3 or io.obs[key][1] != "uint8":
                raise ValueError(f"{key} is {io.obs[key][1]}{list(shape)}, expected uint8[height, width, 3]")
        blind = {key: kind for key, kind in port.io.obs.items() if key in io.obs}
        pictures = {key: io.obs[key] for key in self._sizes}
        names = port.io.obs_names if "state" in io.obs else ()
        self.io = replace(port.io, obs=blind | pictures, obs_names=names, crop=io.crop)
        self._blind = tuple(blind)
        self.external = port.external
        self.cameras = tuple(key.removeprefix(IMAGE) for key in self._sizes)

    def reset(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> None:
        """Take the measured robot (J,) as the start."""
        self._port.reset(position, velocity, task)

    def observe(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> Obs:
        """The port's observation and (1, H, W, 3) uint8 per camera; `task` holds the pictures by "image.<camera>"."""
        full = self._port.observe(position, velocity, task)
        obs = {key: full[key] for key in self._blind}
        parts = {key: crop_pixels(task[key], self.io.crop.get(key, WHOLE)) for key in self._sizes}
        return obs | {key: resize_picture(parts[key], *shape[:2])[None] for key, shape in self._sizes.items()}

    def act(self, action: np.ndarray) -> np.ndarray:
        """(1, A) action in [-1, 1] -> (J,) command in the mode of the robot."""
        return self._port.act(action)


def with_sight(port: Port, io: IOSpec, cameras: Iterable[str]) -> Port:
    """`port`, or a `SightedPort` around it when the policy of interface `io` looks."""
    return SightedPort(port, io, cameras) if any(key.startswith(IMAGE) for key in io.obs) else port
