"""What the supervisor sends, in messages that are made once and filled in every tick.

To publish a message copies it, so the next tick may write into it again.
"""
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
# (fields of messages are lists in truth; rclpy's stubs say less)

from __future__ import annotations

from typing import Any

import numpy as np
from std_msgs.msg import MultiArrayDimension
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_rl.real.core.spec import FIELDS, PD, PD_INTERFACES, TWIST, RobotSpec
from robot_rl.real.ros.io import JointState, TwistStamped, hardware_type, set_time


class HardwareMessage:
    """The command for the robot's controller.

    Args:
        spec: of the robot.

    Raises:
        ValueError: no such command mode.
    """

    def __init__(self, spec: RobotSpec) -> None:
        self._message = message = hardware_type(spec)()
        joints = len(spec.joints)
        if spec.mode == PD:
            self._fill = self._pd
            kinds = len(PD_INTERFACES)
            message.layout.dim = [
                MultiArrayDimension(label="joint", size=joints, stride=joints * kinds),
                MultiArrayDimension(label="interface", size=kinds, stride=kinds),
            ]
            self._table = np.zeros((joints, kinds))
        elif spec.mode == TWIST:
            self._fill = self._twist
            twist = message.twist if isinstance(message, TwistStamped) else message
            parts = {"linear": twist.linear, "angular": twist.angular}
            self._axes = [(parts[part], axis) for part, _, axis in (name.partition("_") for name in spec.names)]
            if isinstance(message, TwistStamped):
                message.header.frame_id = spec.frame
        elif spec.command_mode == "jtc":
            self._fill = self._jtc
            message.joint_names, message.points = list(spec.names), [JointTrajectoryPoint()]
        elif isinstance(message, JointState):
            self._fill = self._joint_command
            message.name = list(spec.names)
        else:
            self._fill = self._array

    def fill(self, value: np.ndarray, period: float, stamp: float, gains: np.ndarray | None = None) -> Any:
        """The message of this tick, good until the next call.

        Args:
            value: (J,) command, to be reached within `period` [s] where the controller asks for a time.
            period: of the loop [s].
            stamp: [s of ROS time].
            gains: (2, J) kp and kd in pd mode: joint after joint its five numbers go out, see `PD_INTERFACES`.
        """
        self._fill(value, period, stamp, gains)
        return self._message

    def _array(self, value: np.ndarray, period: float, stamp: float, gains: np.ndarray | None) -> None:
        self._message.data = value.tolist()

    def _pd(self, value: np.ndarray, period: float, stamp: float, gains: np.ndarray | None) -> None:
        assert gains is not None
        self._table[:, 0], self._table[:, 3:] = value, gains.T
        self._message.data = self._table.ravel().tolist()

    def _twist(self, value: np.ndarray, period: float, stamp: float, gains: np.ndarray | None) -> None:
        for (part, axis), number in zip(self._axes, value.tolist()):
            setattr(part, axis, number)
        if isinstance(self._message, TwistStamped):
            set_time(self._message.header.stamp, stamp)

    def _jtc(self, value: np.ndarray, period: float, stamp: float, gains: np.ndarray | None) -> None:
        point = self._message.points[0]
        point.positions = value.tolist()
        set_time(point.time_from_start, period)  # the header's stamp stays 0: start now

    def _joint_command(self, value: np.ndarray, period: float, stamp: float, gains: np.ndarray | None) -> None:
        self._message.position = value.tolist()
        set_time(self._message.header.stamp, stamp)


class ExecutedMessage:
    """What goes out on `executed`; see `io.Executed`.

    Args:
        spec: of the robot.
    """

    def __init__(self, spec: RobotSpec) -> None:
        self._field, self._point = FIELDS[spec.mode], JointTrajectoryPoint()
        self._message = JointTrajectory(joint_names=list(spec.names), points=[self._point])
        # each field of a message is a property in Python, so what is filled every tick is looked up once
        self._header, self._stamp = self._message.header, self._message.header.stamp
        self._span, self._period = self._point.time_from_start, 0.0

    def fill(
        self, value: np.ndarray, stamp: float, told: tuple[str, str, str], *, velocity: np.ndarray, period: float
    ) -> JointTrajectory:
        """The message of this tick, good until the next call.

        Args:
            value: (J,) the numbers that went to the hardware.
            stamp: [s of ROS time].
            told: authority, trace and flags.
            velocity: (J,) commanded [rad/s].
            period: time over which the command moved to `value` [s]; it travels as `time_from_start`.
        """
        point = self._point
        set_time(self._stamp, stamp)
        self._header.frame_id = "|".join(told)
        point.velocities = velocity.tolist()
        setattr(point, self._field, value.tolist())
        if period != self._period:
            self._period = period
            set_time(self._span, period)
        return self._message
