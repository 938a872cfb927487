"""What a simulated robot on legs tells of its trunk: the IMU as a driver would, and where it is, as the truth."""

from __future__ import annotations

from rclpy.node import Node

from robot_rl.legs import Trunk
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
        kinds = {name: sensor.type.replace("/msg/", "/") for name, sensor in spec.sensors.items()}
        topics = [spec.sensors[name].topic for name, kind in kinds.items() if kind == "sensor_msgs/Imu"]
        self._imus = [publisher(node, Imu, topic, "state_out", health) for topic in topics]
        self._odom = publisher(node, Odometry, "odom", "state_out", health)
        self._frame = spec.frame

    def publish(self, trunk: Trunk, stamp: float, *, imu: bool) -> None:
        """Tell the present state, stamped `stamp` [s]; without `imu` the IMU is silent."""
        for where in self._imus if imu else ():
            where.publish(imu_message(trunk, stamp, self._frame))
        self._odom.publish(trunk_odometry(trunk, stamp, self._frame))


def imu_message(trunk: Trunk, stamp: float, frame: str) -> Imu:
    """What an IMU in the trunk's frame measures; inverse of `io.imu_array`."""
    message = Imu()
    message.header.stamp, message.header.frame_id = time_message(stamp), frame
    q, w, a = message.orientation, message.angular_velocity, message.linear_acceleration
    q.x, q.y, q.z, q.w = trunk.orientation.tolist()
    w.x, w.y, w.z = trunk.angular_velocity.tolist()
    a.x, a.y, a.z = trunk.acceleration.tolist()
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
