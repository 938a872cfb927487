"""Gaps of an IMU: another order of its quaternion, another frame, another unit."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from robot_rl.gaps.contract import Gap, Measured
from robot_rl.gaps.joints import DEGREES
from robot_rl.types.options import Positive

TO = {"wxyz": [3, 0, 1, 2], "xyzw": [1, 2, 3, 0]}
"""Which component lies in the fields x, y, z, w."""


def conjugate(quaternion: np.ndarray) -> np.ndarray:
    """The inverse rotation of (..., 4) unit quaternions x, y, z, w."""
    return np.asarray(quaternion, float) * np.array([-1.0, -1.0, -1.0, 1.0])


def look_down(quaternion: np.ndarray) -> np.ndarray:
    """The same orientation (..., 4) in a world whose z axis points down: turned by half a turn about the world's x."""
    x, y, z, w = np.moveaxis(np.asarray(quaternion, float), -1, 0)
    return np.stack([w, -z, y, -x], axis=-1)


class _ImuGap(Gap):
    """What an IMU tells is changed; a robot without one stays as it is."""

    def measure(self, measured: Measured) -> Measured:
        """With the changed IMU."""
        if measured.imu is None:
            return measured
        imu = np.array(measured.imu, float)
        self._change(imu)
        return replace(measured, imu=imu)

    def _change(self, imu: np.ndarray) -> None:
        """Change a reading (10,) in place."""
        raise NotImplementedError


class QuaternionOrder(_ImuGap):
    """The scalar of the orientation first, where ROS has it last, or the other way round."""

    name: Literal["quaternion_order"] = "quaternion_order"
    """Of the gap."""
    lies: Literal["wxyz", "xyzw"] = "wxyz"
    """wxyz: the fields x, y, z, w hold w, x, y, z; xyzw: they hold x, y, z, w of a message that means w, x, y, z."""

    def _change(self, imu: np.ndarray) -> None:
        imu[:4] = imu[TO[self.lies]]

    def inverse(self) -> QuaternionOrder:
        """Back."""
        return QuaternionOrder(lies="xyzw" if self.lies == "wxyz" else "wxyz")


class GravityFrame(_ImuGap):
    """Where down is, is told otherwise."""

    name: Literal["gravity_frame"] = "gravity_frame"
    """Of the gap."""
    kind: Literal["inverse", "down", "sign"] = "inverse"
    """inverse: the orientation of the world in the trunk, so that gravity in the trunk's frame becomes that in the
    world's; down: in a world whose z axis points down; sign: the accelerometer tells gravity, -9.81 along z at rest,
    where what holds the robot up, +9.81, is meant."""

    def _change(self, imu: np.ndarray) -> None:
        if self.kind == "sign":
            imu[7:10] *= -1.0
        else:
            imu[:4] = conjugate(imu[:4]) if self.kind == "inverse" else look_down(imu[:4])

    def inverse(self) -> GravityFrame:
        """Itself: done twice, each is the same rotation as before."""
        return self


class TurnScale(_ImuGap):
    """The angular velocity of the IMU in another unit."""

    name: Literal["turn_scale"] = "turn_scale"
    """Of the gap."""
    factor: Positive = DEGREES
    """What is told for 1 rad/s; degrees unless said otherwise."""

    def _change(self, imu: np.ndarray) -> None:
        imu[4:7] *= self.factor

    def inverse(self) -> TurnScale:
        """Back."""
        return TurnScale(factor=1.0 / self.factor)
