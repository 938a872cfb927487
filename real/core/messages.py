"""Readings of ROS messages as arrays, by their fields: rclpy's messages and those out of a bag alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray


def joint_arrays(message: Any) -> tuple[list[str], Array, Array | None, Array | None]:
    """Names, position, velocity and effort of a JointState as sent; empty velocity and effort are None."""
    velocity = np.array(message.velocity, float) if len(message.velocity) else None
    effort = np.array(message.effort, float) if len(message.effort) else None
    return list(message.name), np.array(message.position, float), velocity, effort


def in_order(names: Sequence[str], values: Sequence[float] | Array, wanted: Sequence[str]) -> Array | None:
    """(n,) the values of the `wanted` names in their order; None where one of them is missing."""
    table = dict(zip(names, values))
    return np.array([table[name] for name in wanted], float) if all(name in table for name in wanted) else None


def wrench_array(message: Any) -> Array:
    """(6,) force [N] and torque [N m] of a WrenchStamped."""
    force, torque = message.wrench.force, message.wrench.torque
    return np.array([force.x, force.y, force.z, torque.x, torque.y, torque.z], float)


def imu_array(message: Any) -> Array:
    """(10,) orientation x, y, z, w (nan when the sender has none), angular velocity [rad/s], acceleration [m/s^2]."""
    q, w, a = message.orientation, message.angular_velocity, message.linear_acceleration
    turn = [np.nan] * 4 if message.orientation_covariance[0] == -1.0 else [q.x, q.y, q.z, q.w]
    return np.array([*turn, w.x, w.y, w.z, a.x, a.y, a.z], float)


def twist_array(message: Any) -> Array:
    """(6,) linear [m/s] and angular velocity [rad/s] of a Twist or TwistStamped."""
    twist = message.twist if hasattr(message, "twist") else message
    linear, angular = twist.linear, twist.angular
    return np.array([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z], float)


def odometry_array(message: Any) -> Array:
    """(13,) position [m], orientation x, y, z, w, linear and angular velocity in the child frame."""
    p, q = message.pose.pose.position, message.pose.pose.orientation
    return np.concatenate([[p.x, p.y, p.z, q.x, q.y, q.z, q.w], twist_array(message.twist)])


def sensor_array(message: Any) -> Array:
    """An Imu, WrenchStamped, Odometry, Twist, TwistStamped or Float64MultiArray as one vector."""
    for part, read in _READERS.items():
        if hasattr(message, part):
            return read(message)
    return np.array(message.data, float)


_READERS = {
    "linear_acceleration": imu_array,
    "wrench": wrench_array,
    "pose": odometry_array,
    "twist": twist_array,
    "linear": twist_array,
}
"""The field by which a message is known; the first that it has."""
