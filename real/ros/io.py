"""Messages to arrays and back, and the quality of service of every topic."""
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
# (fields of messages are lists in truth; rclpy's stubs say less)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robot_rl.extras import require
from robot_rl.real.core.intake import CommandMessage
from robot_rl.real.core.messages import in_order, twist_array
from robot_rl.real.core.spec import AXES, FIELDS, PD, PD_INTERFACES, TWIST, RobotSpec

require("rclpy")

from builtin_interfaces.msg import Duration, Time  # noqa: E402  (after the check that rclpy is there)
from geometry_msgs.msg import Twist, TwistStamped, WrenchStamped  # noqa: E402
from nav_msgs.msg import Odometry  # noqa: E402
from rclpy.duration import Duration as Span  # noqa: E402
from rclpy.qos import (  # noqa: E402
    DurabilityPolicy,
    HistoryPolicy,
    LivelinessPolicy,
    QoSProfile,
    ReliabilityPolicy,
)
from sensor_msgs.msg import CompressedImage, Image, Imu, JointState  # noqa: E402
from std_msgs.msg import Float64MultiArray  # noqa: E402
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint  # noqa: E402

Array = np.ndarray
LEASE = 0.5
"""Seconds without a sign of life after which a command source counts as dead; a second watchdog below ours."""
TYPES: dict[str, object] = {
    "sensor_msgs/JointState": JointState,
    "sensor_msgs/Imu": Imu,
    "sensor_msgs/Image": Image,
    "sensor_msgs/CompressedImage": CompressedImage,
    "geometry_msgs/WrenchStamped": WrenchStamped,
    "geometry_msgs/Twist": Twist,
    "geometry_msgs/TwistStamped": TwistStamped,
    "nav_msgs/Odometry": Odometry,
    "std_msgs/Float64MultiArray": Float64MultiArray,
}
"""Sensor types of a RobotSpec; `sensor_msgs/msg/Imu` is read as `sensor_msgs/Imu`."""

# kind -> (reliable, latched, depth). Best-effort subscribers also match reliable publishers, so what we read asks for
# little and what we write offers much.
_QOS: dict[str, tuple[bool, bool, int]] = {
    "state": (False, False, 8),  # several publishers may each send a part of the joints between two ticks
    "state_out": (True, False, 1),
    "image": (False, False, 1),
    "hardware_out": (True, False, 1),
    "hardware": (True, False, 1),  # ros2_control subscribes with the system's defaults
    "command": (True, False, 1),
    "takeover": (True, False, 1),
    "external": (True, False, 10),
    "executed": (True, False, 100),
    "latched": (True, True, 1),
    "estop_in": (True, False, 10),  # volatile, so that any publisher matches
    "event": (True, False, 10),
    "record": (False, False, 50),
    "clock": (True, False, 1),
}


def qos(kind: str) -> QoSProfile:
    """Profile of a kind of topic.

    Args:
        kind: `state` (subscribe), `state_out` (publish), `image`, `hardware` (subscribe), `hardware_out` (publish),
            `command`, `takeover`, `external`, `executed`, `latched`, `estop_in`, `event`, `record` or `clock`.

    Raises:
        KeyError: another kind.
    """
    reliable, latched, depth = _QOS[kind]
    profile = QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )
    # no deadline: a policy of chunks speaks seldom, but says every tick that it lives
    if kind in ("command", "hardware_out"):
        profile.liveliness = LivelinessPolicy.MANUAL_BY_TOPIC
        profile.liveliness_lease_duration = Span(seconds=LEASE)
    return profile


def message_type(name: str) -> Any:
    """Class of a sensor type of a RobotSpec.

    Raises:
        ValueError: lists the types that can be read.
    """
    short = name.replace("/msg/", "/")
    if short not in TYPES:
        raise ValueError(f"type is {name!r}, expected one of {', '.join(TYPES)}")
    return TYPES[short]


# ---------------------------------------------------------------- time


def seconds(stamp: Time | Duration) -> float:
    """Seconds of a ROS time or duration."""
    return stamp.sec + 1e-9 * stamp.nanosec


def set_time(message: Time | Duration, value: float) -> None:
    """Write seconds >= 0 into a ROS time or duration."""
    whole = int(value)
    nanosec = round((value - whole) * 1e9)
    message.sec, message.nanosec = whole + nanosec // 1_000_000_000, nanosec % 1_000_000_000


def time_message(value: float) -> Time:
    """ROS time of seconds >= 0."""
    made = Time()
    set_time(made, value)
    return made


def duration_message(value: float) -> Duration:
    """ROS duration of seconds >= 0."""
    made = Duration()
    set_time(made, value)
    return made


# ---------------------------------------------------------------- states


def joint_state(
    names: Sequence[str], position: Array, velocity: Array | None, effort: Array | None, stamp: float
) -> JointState:
    """JointState message; None leaves the field empty."""
    message = JointState(name=list(names), position=np.asarray(position, float).tolist())
    message.header.stamp = time_message(stamp)
    if velocity is not None:
        message.velocity = np.asarray(velocity, float).tolist()
    if effort is not None:
        message.effort = np.asarray(effort, float).tolist()
    return message


def wrench_message(values: Array, stamp: float, frame: str) -> WrenchStamped:
    """(6,) force [N] and torque [N m]."""
    message = WrenchStamped()
    message.header.stamp, message.header.frame_id = time_message(stamp), frame
    f, t = message.wrench.force, message.wrench.torque
    f.x, f.y, f.z, t.x, t.y, t.z = np.asarray(values, float).tolist()
    return message


def motion_message(
    kind: Any, velocity: Sequence[float], pose: Sequence[float], stamp: float, frame: str
) -> Odometry | TwistStamped:
    """How a base moves.

    Args:
        kind: Odometry or TwistStamped.
        velocity: (6,) linear [m/s] and angular [rad/s], in the base's own frame.
        pose: x [m], y [m], yaw [rad] in the frame `odom`.
        stamp: [s].
        frame: of the base.
    """
    twist = Twist()
    twist.linear.x, twist.linear.y, twist.linear.z = velocity[:3]
    twist.angular.x, twist.angular.y, twist.angular.z = velocity[3:]
    message = kind()
    message.header.stamp = time_message(stamp)
    if kind is TwistStamped:
        message.twist, message.header.frame_id = twist, frame
        return message
    message.twist.twist, message.header.frame_id, message.child_frame_id = twist, "odom", frame
    x, y, yaw = (float(v) for v in pose)
    message.pose.pose.position.x, message.pose.pose.position.y = x, y
    message.pose.pose.orientation.z, message.pose.pose.orientation.w = float(np.sin(yaw / 2)), float(np.cos(yaw / 2))
    return message


# ---------------------------------------------------------------- commands


def trajectory(
    names: Sequence[str], stamp: float, tag: str, seq: int, times: Sequence[float], values: Array, field: str
) -> JointTrajectory:
    """Message for `command/*`.

    Args:
        names: (J,) joints.
        stamp: of the observation the command was computed from [s of ROS time].
        tag: identity of the sender, without "/".
        seq: its running number.
        times: (n,) seconds after the stamp; n = 0 lets go.
        values: (n, J).
        field: `positions`, `velocities` or `effort`.
    """
    message = JointTrajectory(joint_names=list(names))
    message.header.stamp, message.header.frame_id = time_message(stamp), f"{tag}/{seq}"
    for when, row in zip(times, values):
        point = JointTrajectoryPoint(time_from_start=duration_message(float(when)))
        setattr(point, field, np.asarray(row, float).tolist())
        message.points.append(point)
    return message


def read_command(message: JointTrajectory, source: str) -> CommandMessage:
    """What came on `command/*` or as foreign JointTrajectory, ready for the intake, which judges it.

    A tag without a number reads as sequence number 0. Points whose lengths differ come out as ragged arrays of shape
    (n, 0), which the intake refuses.

    Args:
        message: as received.
        source: `policy`, `human` or `external`.
    """
    tag, _, number = message.header.frame_id.rpartition("/")
    seq = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 0
    points = message.points
    fields: dict[str, Array] = {}
    for field, rows in (
        ("positions", [point.positions for point in points]),
        ("velocities", [point.velocities for point in points]),
        ("effort", [point.effort for point in points]),
    ):
        if any(len(row) for row in rows):
            even = len({len(row) for row in rows}) == 1
            fields[field] = np.array(rows, float) if even else np.zeros((len(rows), 0))
    return CommandMessage(
        source=source,
        tag=f"{source}:{tag or message.header.frame_id}",
        seq=seq,
        names=tuple(message.joint_names),
        stamp=seconds(message.header.stamp),
        times=np.array([seconds(point.time_from_start) for point in points], float),
        fields=fields,
    )


def read_step(names: Sequence[str], values: object, field: str, *, hold: float) -> CommandMessage:
    """A foreign command without stamp or sequence (Float64MultiArray, JointState) as a step for the intake.

    Args:
        names: (J,) joints in the sender's order.
        values: (J,).
        field: `positions` or `velocities`.
        hold: seconds for which it stays fresh.
    """
    row = np.atleast_2d(np.asarray(values, float))
    return CommandMessage("external", "external", 0, tuple(names), 0.0, np.array([hold]), {field: row})


def read_twist(message: Twist | TwistStamped, axes: Sequence[str], source: str, *, hold: float = 0.1) -> CommandMessage:
    """A twist as a step for the intake: velocities along the robot's axes.

    Stamp and frame_id of a TwistStamped mean what they mean in `command/*`. A twist that also asks for an axis which
    the robot has not comes out with that name, and the intake refuses it.

    Args:
        message: as received.
        axes: (J,) names of the RobotSpec's joints.
        source: `policy`, `human` or `external`.
        hold: seconds for which it stays fresh.
    """
    header = read_command(JointTrajectory(header=message.header), source) if isinstance(message, TwistStamped) else None
    asked = dict(zip(AXES, twist_array(message).tolist()))
    names = [*axes, *(name for name, value in asked.items() if name not in axes and value != 0.0)]
    return CommandMessage(
        source=source,
        tag=header.tag if header else source,
        seq=header.seq if header else 0,
        names=tuple(names),
        stamp=header.stamp if header else 0.0,
        times=np.array([hold]),
        fields={FIELDS[TWIST]: np.array([[asked.get(name, np.nan) for name in names]])},
    )


# ---------------------------------------------------------------- what the supervisor sends (`outgoing` makes it)


def hardware_type(spec: RobotSpec) -> Any:
    """Message class of the robot's command topic.

    Raises:
        ValueError: no such command mode.
    """
    if spec.mode == TWIST:
        return TwistStamped if spec.stamped else Twist
    if spec.command_mode.startswith("forward") or spec.mode == PD:
        return Float64MultiArray
    kinds = {"jtc": JointTrajectory, "joint_command": JointState}
    if spec.command_mode not in kinds:
        raise ValueError(
            f"command_mode is {spec.command_mode}, expected forward_*, jtc, joint_command, twist, servo or pd"
        )
    return kinds[spec.command_mode]


def hardware_values(spec: RobotSpec, message: object) -> Array | None:
    """Inverse of `HardwareMessage` as a controller reads it: (J,) in the order of the spec, None when it does not fit.

    A JointTrajectory is read at its last point; in pd mode it is (5, J), rows as in `PD_INTERFACES`.
    """
    if spec.mode == PD:
        table = np.array(message.data, float)
        fits = table.shape == (len(PD_INTERFACES) * len(spec.joints),) and np.isfinite(table).all()
        return table.reshape(len(spec.joints), -1).T if fits else None
    if isinstance(message, Float64MultiArray):
        value = np.array(message.data, float)
    elif isinstance(message, (Twist, TwistStamped)):
        value = in_order(AXES, twist_array(message).tolist(), spec.names)
    elif isinstance(message, JointTrajectory):
        value = in_order(message.joint_names, message.points[-1].positions if message.points else [], spec.names)
    else:
        value = in_order(message.name, message.position, spec.names)
    fits = value is not None and value.shape == (len(spec.joints),) and np.isfinite(value).all()
    return value if fits else None


@dataclass(frozen=True)
class Executed:
    """One message of `executed`.

    Args:
        stamp: when it was sent [s of ROS time].
        value: (J,) the numbers that went to the hardware.
        names: (J,).
        authority: `none`, `external`, `policy` or `human`.
        trace: `<source>/<seq>` of the command behind it.
        flags: letters: c clipped, h hold, b braking, r chunk replaced, s stale.
        velocity: (J,) commanded [rad/s].
        period: time over which the command moved to `value` [s], 0 when it stood.
    """

    stamp: float
    value: Array
    names: tuple[str, ...]
    authority: str
    trace: str
    flags: str
    velocity: Array
    period: float


def read_executed(message: JointTrajectory) -> Executed:
    """Inverse of `ExecutedMessage`.

    Raises:
        ValueError: not a message of our supervisor.
    """
    parts = message.header.frame_id.split("|")
    if len(parts) != 3 or len(message.points) != 1:
        raise ValueError(f"frame_id is {message.header.frame_id!r}, expected authority|source/seq|flags and one point")
    point = message.points[0]
    row = point.positions or point.effort or point.velocities
    return Executed(
        stamp=seconds(message.header.stamp),
        value=np.array(row, float),
        names=tuple(message.joint_names),
        authority=parts[0],
        trace=parts[1],
        flags=parts[2],
        velocity=np.array(point.velocities, float),
        period=seconds(point.time_from_start),
    )
