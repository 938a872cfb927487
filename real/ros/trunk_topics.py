"""What a simulated robot on legs tells of its trunk: the IMU as a driver would, and where it is, as the truth."""

from __future__ import annotations

import numpy as np
from rclpy.node import Node

from robot_rl.legs import Trunk, gravity
from robot_rl.real.core.sensor_spec import FREE, RATE
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.io import Imu, Odometry, time_message
from robot_rl.real.ros.node_base import Health, publisher


class TrunkTopics:
    """Publishes sensor_msgs/Imu where the RobotSpec reads it, and nav_msgs/Odometry on `odom`.

    Args:
        node: of the simulated robot.
        spec: of the robot.
        health: for QoS mismatches.
    """

    def __init__(self, node: Node, spec: RobotSpec, health: Health) -> None:
        topics = [sensor.topic for sensor in spec.sensors.values() if sensor.kind == "sensor_msgs/Imu"]
        self._imus = [publisher(node, Imu, topic, "state_out", health) for topic in topics]
        self._odom = publisher(node, Odometry, "odom", "state_out", health)
        self._frame = spec.frame

    def publish(self, trunk: Trunk, stamp: float, imu: tuple[np.ndarray, float] | None) -> None:
        """Tell where it is, stamped `stamp` [s], and what the IMU says (10,), with its own stamp; None: nothing."""
        if imu is not None:
            for where in self._imus:
                where.publish(imu_message(imu[0], imu[1], self._frame))
        self._odom.publish(trunk_odometry(trunk, stamp, self._frame))


class SimulatedImu:
    """What an IMU in the trunk's frame tells, from one reading to the next.

    Args:
        acceleration: which, see `SensorSpec`.
    """

    def __init__(self, acceleration: str | None) -> None:
        self._kind = acceleration
        self._before: tuple[float, np.ndarray] | None = None

    def read(self, trunk: Trunk, stamp: float) -> np.ndarray:
        """(10,) of the moment `stamp` [s], as `messages.imu_array`; a `rate` is the mean since the reading before."""
        told = imu_of(trunk)
        if self._kind == FREE:
            told[7:] += 9.81 * gravity(trunk.orientation)
        elif self._kind == RATE:
            when, velocity = self._before or (stamp, trunk.velocity)
            told[7:] = (trunk.velocity - velocity) / (stamp - when) if stamp > when else 0.0
            self._before = stamp, trunk.velocity
        return told


def imu_of(trunk: Trunk) -> np.ndarray:
    """(10,) what an IMU in the trunk's frame measures, as `messages.imu_array`."""
    return np.concatenate([trunk.orientation, trunk.angular_velocity, trunk.acceleration])


def imu_message(values: np.ndarray, stamp: float, frame: str) -> Imu:
    """Inverse of `messages.imu_array`: (10,) orientation x, y, z, w, angular velocity and acceleration."""
    message = Imu()
    message.header.stamp, message.header.frame_id = time_message(stamp), frame
    q, w, a = message.orientation, message.angular_velocity, message.linear_acceleration
    q.x, q.y, q.z, q.w, w.x, w.y, w.z, a.x, a.y, a.z = np.asarray(values, float).tolist()
    return message


def trunk_odometry(trunk: Trunk, stamp: float, frame: str) -> Odometry:
    """Where a trunk is in the frame `odom`, and its velocities in its own frame."""
    message = Odometry(child_frame_id=frame)
    message.header.stamp, message.header.frame_id = time_message(stamp), "odom"
    p, q = message.pose.pose.position, message.pose.pose.orientation
    p.x, p.y, p.z = trunk.position.tolist()
    q.x, q.y, q.z, q.w = trunk.orientation.tolist()
    v, w = message.twist.twist.linear, message.twist.twist.angular
    v.x, v.y, v.z = trunk.velocity.tolist()
    w.x, w.y, w.z = trunk.angular_velocity.tolist()
    return message
