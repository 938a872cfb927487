"""What a gap is: it changes what is measured, or what is commanded, and may have an inverse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from robot_rl.types import Options


@dataclass(frozen=True)
class Measured:
    """What a robot tells of one moment.

    Args:
        time: of acquisition [s].
        position: (J,) [rad or m].
        velocity: (J,) [rad/s or m/s].
        imu: (10,) orientation x, y, z, w of the trunk in the world, angular velocity [rad/s] and acceleration [m/s2] in
            its own frame, as in sensor_msgs/Imu; None where there is no IMU.
        pictures: camera -> (H, W, 3) uint8.
    """

    time: float
    position: np.ndarray
    velocity: np.ndarray
    imu: np.ndarray | None = None
    pictures: Mapping[str, np.ndarray] = field(default_factory=dict)


class Gap(Options):
    """One difference; what a gap says nothing of stays as it is.

    Gaps that remember (delays, stiction) begin with the first call; another run takes another object.

    Attributes:
        of_pictures: whether cameras alone are changed.
    """

    of_pictures: ClassVar[bool] = False

    def measure(self, measured: Measured) -> Measured:
        """What is told in place of `measured`."""
        return measured

    def command(self, value: np.ndarray) -> np.ndarray:
        """What arrives in place of a command: (J,), or (5, J) position, velocity, effort, kp and kd of pd mode."""
        return value

    def inverse(self) -> Gap | None:
        """The gap that undoes this one; None where nothing does."""
        return None


def apply_gaps(gaps: Iterable[Gap], measured: Measured) -> Measured:
    """What is told once all of them, in their order, have changed it."""
    for gap in gaps:
        measured = gap.measure(measured)
    return measured


def inverse_of(gaps: Sequence[Gap]) -> tuple[Gap, ...]:
    """Gaps that undo a row of them, last first.

    Raises:
        ValueError: one of them has no inverse; it is named.
    """
    found = []
    for gap in reversed(gaps):
        undone = gap.inverse()
        if undone is None:
            raise ValueError(f"{type(gap).__name__} loses what it changes: nothing undoes it")
        found.append(undone)
    return tuple(found)
