"""From named axes of a device to actions of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from robot_rl.types import IOSpec

AXES = ("x", "y", "z", "yaw", "pitch", "roll")
_WORDS = (
    ("gripper", "grip"),
    ("yaw", "yaw"),
    ("pitch", "pitch"),
    ("roll", "roll"),
    ("steer", "y"),
    ("throttle", "x"),
    ("speed", "x"),
    ("drive", "x"),
    ("dx", "x"),
    ("dy", "y"),
    ("dz", "z"),
)


class ActionMap:
    """Named axes ("x", "y", "z", "yaw" ... in [-1, 1], and "grip") to an action vector.

    Every action is matched to an axis by its name; what no word matches takes the axes that are left, in order. A
    gripper is absolute: "grip" +1 opens, -1 closes, 0 keeps it as it is, by whomever (see `follow`).

    Args:
        io: interface of the policy.
        dead_zone: deflections up to this are zero; the rest is stretched to [0, 1].
        speed: factor on the axes; below 1 for fine work.
    """

    def __init__(self, io: IOSpec, *, dead_zone: float = 0.05, speed: float = 1.0) -> None:
        if not 0.0 <= dead_zone < 1.0 or not 0.0 < speed <= 1.0:
            raise ValueError(f"dead_zone is {dead_zone} and speed {speed}, expected in [0, 1) and (0, 1]")
        self._dead, self._speed = dead_zone, speed
        self.axes = axes_of(io.action_names)
        self._grip = 1.0

    def follow(self, action: np.ndarray) -> None:
        """Somebody else drives the robot by (A,): the gripper is as they want it."""
        if "grip" in self.axes and abs(grip := float(action[self.axes.index("grip")])) > 0.5:
            self._grip = 1.0 if grip > 0 else -1.0

    def __call__(self, axes: Mapping[str, float], factor: float = 1.0) -> tuple[np.ndarray, float]:
        """(A,) action and the largest axis after the dead zone; what is not finite counts as zero.

        Args:
            axes: by name.
            factor: on the speed; a gripper does not have one.
        """
        value, norm = np.zeros(len(self.axes), np.float32), 0.0
        grip = _finite(axes.get("grip", 0.0))
        if abs(grip) > 0.5:
            self._grip = 1.0 if grip > 0 else -1.0
            norm = 1.0
        for i, name in enumerate(self.axes):
            if name == "grip":
                value[i] = self._grip
                continue
            raw = float(np.clip(_finite(axes.get(name, 0.0)), -1.0, 1.0))
            size = max(abs(raw) - self._dead, 0.0) / (1.0 - self._dead)
            norm = max(norm, size)
            value[i] = self._speed * factor * np.copysign(size, raw)
        return value, norm


def axes_of(names: Sequence[str]) -> tuple[str, ...]:
    """The axis of every action."""
    out: list[str] = []
    for name in names:
        axis = next((axis for word, axis in _WORDS if word in name), "")
        out.append("" if axis in out else axis)
    left = iter([axis for axis in AXES if axis not in out])
    return tuple(axis or next(left, f"axis{i}") for i, axis in enumerate(out))


def _finite(value: float) -> float:
    return float(value) if np.isfinite(value) else 0.0
