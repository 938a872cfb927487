"""Messages to arrays and back, and what the QoS table promises."""
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false, reportArgumentType=false

import numpy as np
import pytest
import rclpy
from hypothesis import given, settings
from hypothesis import strategies as st
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, LivelinessPolicy, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions

from robot_rl.legs import Trunk
from robot_rl.real.cameras import raw_pixels
from robot_rl.real.core import messages
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros import io
from robot_rl.real.ros.controller_check import judge
from robot_rl.real.ros.node_base import Health, subscribe
from robot_rl.real.ros.outgoing import ExecutedMessage, HardwareMessage
from robot_rl.real.ros.trunk_topics import SimulatedImu, imu_message, imu_of, trunk_odometry

pytestmark = pytest.mark.ros
NAMES = ("a", "b", "c")
finite = st.floats(-1e6, 1e6)
rows = st.lists(finite, min_size=3, max_size=3)


def spec(mode):
    joint = {"lower": -2.0, "upper": 2.0, "velocity": 1.0, "acceleration": 5.0, "effort": 10.0}
    raw = {"name": "arm", "joints": [{"name": n, **joint} for n in NAMES], "command_mode": mode, "dead_time": 0.0}
    return RobotSpec.from_dict(raw)


@given(st.floats(0, 4e9))
def test_time_round_trip_to_nanoseconds(value):
    assert io.seconds(io.time_message(value)) == pytest.approx(value, abs=1e-6)
    assert 0 <= io.time_message(value).nanosec < 10**9


def test_time_message_carries_over_whole_seconds():
    stamp = io.time_message(1.9999999999)
    assert (stamp.sec, stamp.nanosec) == (2, 0)


@given(st.lists(rows, min_size=1, max_size=5), st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_command_round_trip(values, seq):
    times = 0.1 * np.arange(1, len(values) + 1)
    message = io.trajectory(NAMES, 12.5, "run@100", seq, times.tolist(), np.array(values), "positions")
    back = io.read_command(message, "policy")
    assert (back.tag, back.seq, back.names, back.stamp) == ("policy:run@100", seq, NAMES, 12.5)
    assert np.allclose(back.times, times)
    assert np.array_equal(back.fields["positions"], values)


@pytest.mark.parametrize("frame", ["", "/", "x", "x/", "x/-1", "x/1e3", "x/٣", "x/" + "9" * 40, "日本/7"])
def test_command_with_an_odd_tag_is_read_without_error(frame):
    message = io.trajectory(NAMES, 1.0, "t", 1, [0.1], np.zeros((1, 3)), "positions")
    message.header.frame_id = frame
    assert io.read_command(message, "policy").seq == (7 if frame.endswith("/7") else 0)


def test_command_with_ragged_points_is_no_command():
    message = io.trajectory(NAMES, 1.0, "t", 1, [0.1, 0.2], np.zeros((2, 3)), "positions")
    message.points[1].positions = [1.0]
    assert io.read_command(message, "policy").fields["positions"].shape == (2, 0)


@pytest.mark.parametrize("mode", ["forward_position", "forward_velocity", "jtc", "joint_command"])
def test_hardware_command_round_trip(mode):
    made = spec(mode)
    out = HardwareMessage(made)
    for value in ([1.0, 2.0, 3.0], [-1.0, 0.5, 7.0]):  # the same message again
        message = out.fill(np.array(value), 0.01, 5.0)
        assert isinstance(message, io.hardware_type(made))
        assert io.hardware_values(made, message).tolist() == value


@pytest.mark.parametrize("stamped", [True, False])
def test_twist_round_trip(stamped):
    axes = [{"name": n, "velocity": 1.0, "acceleration": 2.0} for n in ("linear_x", "linear_y", "angular_z")]
    sensors = {"odom": {"topic": "odom", "type": "nav_msgs/Odometry"}}
    raw = {"name": "base", "joints": axes, "command_mode": "twist", "controller_topic": "cmd_vel", "sensors": sensors}
    made = RobotSpec.from_dict({**raw, "controller_timeout": 0.3, "stamped": stamped, "frame": "base"})
    message = HardwareMessage(made).fill(np.array([0.5, -0.1, 0.2]), 0.01, 5.25)
    assert io.hardware_values(made, message).tolist() == [0.5, -0.1, 0.2]
    if stamped:
        assert (message.header.frame_id, io.seconds(message.header.stamp)) == ("base", 5.25)


def legs():
    joint = {"lower": -2.0, "upper": 2.0, "velocity": 1.0, "acceleration": 5.0, "effort": 10.0, "kp": 50.0, "kd": 1.0}
    raw = {"name": "legs", "joints": [{"name": n, **joint} for n in NAMES], "command_mode": "pd", "home": [0.0] * 3}
    return RobotSpec.from_dict({**raw, "legs": {}, "sensors": {"imu": {"topic": "imu", "type": "sensor_msgs/Imu"}}})


def test_targets_with_gains_go_out_joint_after_joint_as_ros2_control_takes_them():
    gains = np.array([[50.0, 40.0, 0.0], [1.0, 2.0, 3.0]])
    message = HardwareMessage(legs()).fill(np.array([0.1, 0.2, 0.3]), 0.01, 5.0, gains)
    assert isinstance(message, io.hardware_type(legs()))
    assert list(message.data) == [0.1, 0, 0, 50, 1, 0.2, 0, 0, 40, 2, 0.3, 0, 0, 0, 3]
    assert [(dim.label, dim.size, dim.stride) for dim in message.layout.dim] == [("joint", 3, 15), ("interface", 5, 5)]
    back = io.hardware_values(legs(), message)
    assert back.tolist() == [[0.1, 0.2, 0.3], [0] * 3, [0] * 3, [50, 40, 0], [1, 2, 3]]
    assert io.hardware_values(legs(), io.Float64MultiArray(data=[1.0] * 3)) is None
    assert io.hardware_values(legs(), io.Float64MultiArray(data=[np.nan] * 15)) is None


def test_controller_of_targets_with_gains_has_to_take_the_same_five_in_the_same_order():
    five, names = ["position", "velocity", "effort", "kp", "kd"], list(NAMES)
    assert judge(legs(), "drive", names, five) == ""
    assert "reads arrays as c, b, a" in judge(legs(), "drive", names[::-1], five)
    assert "drive takes position, velocity, effort, kd, kp" in judge(legs(), "drive", names, [*five[:3], "kd", "kp"])
    assert "nobody knows what" in judge(legs(), "drive", names, [])
    assert "does not tell its joints" in judge(legs(), "drive", [], five)


def test_trunk_as_messages_and_back():
    trunk = Trunk(*(np.array(x, float) for x in ([1, 2, 3], [0.1, 0.2, 0.3, 0.9], [4, 5, 6], [7, 8, 9], [0, 1, 9.8])))
    imu = imu_message(imu_of(trunk), 2.5, "pelvis")
    assert (imu.header.frame_id, imu.header.stamp.sec) == ("pelvis", 2)
    assert messages.sensor_array(imu).tolist() == [0.1, 0.2, 0.3, 0.9, 7, 8, 9, 0, 1, 9.8]
    odom = trunk_odometry(trunk, 2.5, "pelvis")
    assert (odom.header.frame_id, odom.child_frame_id) == ("odom", "pelvis")
    assert messages.sensor_array(odom).tolist() == [1, 2, 3, 0.1, 0.2, 0.3, 0.9, 4, 5, 6, 7, 8, 9]
    twist = io.Twist()
    twist.linear.x, twist.angular.z = 0.5, -0.2
    assert messages.sensor_array(twist).tolist() == [0.5, 0, 0, 0, 0, -0.2]


def test_imu_whose_driver_takes_gravity_out_tells_its_acceleration_or_how_its_velocity_changes():
    half = np.sqrt(0.5)

    def trunk(speed: float) -> Trunk:  # lies on its side, so that the world's z is its y, turns, and is pushed along x
        spin, felt = np.array([0.0, 2.0, 0.0]), np.array([3.0, 9.81, -2.0 * speed])
        return Trunk(np.zeros(3), np.array([half, 0, 0, half]), np.array([speed, 0.0, 0.0]), spin, felt)

    assert SimulatedImu(None).read(trunk(1.0), 0.0)[7:] == pytest.approx([3.0, 9.81, -2.0])
    assert SimulatedImu("free").read(trunk(1.0), 0.0)[7:] == pytest.approx([3.0, 0.0, -2.0])
    imu = SimulatedImu("rate")
    told = [imu.read(trunk(speed), stamp)[7:].tolist() for speed, stamp in ((1.0, 0.1), (1.3, 0.2), (1.3, 0.2))]
    assert told[0] == told[2] == [0, 0, 0]  # the first, and one while simulated time stands still
    assert told[1] == pytest.approx([3.0, 0.0, 0.0])  # not that it turns: what is summed up is its velocity


def test_controller_drops_what_does_not_fit():
    made = spec("forward_position")
    assert io.hardware_values(made, io.Float64MultiArray(data=[1.0])) is None
    assert io.hardware_values(made, io.Float64MultiArray(data=[1.0, np.nan, 0.0])) is None
    assert io.hardware_values(spec("jtc"), io.JointTrajectory(joint_names=["a"])) is None


@pytest.mark.parametrize("mode", ["forward_position", "forward_velocity"])
def test_executed_round_trip(mode):
    told = "policy", "run/3", "cr"
    message = ExecutedMessage(spec(mode)).fill(np.ones(3), 7.25, told, velocity=np.ones(3), period=0.0125)
    back = io.read_executed(message)
    assert (back.stamp, back.authority, back.trace, back.flags, back.period) == (7.25, "policy", "run/3", "cr", 0.0125)
    assert back.value.tolist() == back.velocity.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="authority"):
        io.read_executed(io.JointTrajectory())


def test_joint_state_round_trip_and_empty_fields():
    names, position, velocity, effort = messages.joint_arrays(
        io.joint_state(NAMES, np.arange(3), None, np.ones(3), 1.0)
    )
    assert (names, position.tolist(), velocity, effort.tolist()) == (list(NAMES), [0, 1, 2], None, [1, 1, 1])


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(("encoding", "kind"), [("16UC1", "u2"), ("32FC1", "f4"), ("mono8", "u1"), ("rgb8", "u1")])
def test_image_honours_step_and_byte_order(encoding, kind, big):
    channels = 3 if encoding == "rgb8" else 1
    pixels = (
        np.arange(2 * 3 * channels).reshape(2, 3 * channels).astype(np.dtype(kind).newbyteorder(">" if big else "<"))
    )
    padded = np.concatenate([pixels.view(np.uint8).reshape(2, -1), np.zeros((2, 5), np.uint8)], axis=1)
    message = io.Image(height=2, width=3, encoding=encoding, step=padded.shape[1], is_bigendian=big)
    message.data = padded.tobytes()
    found = raw_pixels(message)
    assert found.shape == ((2, 3, 3) if channels == 3 else (2, 3))
    assert np.array_equal(found.ravel(), pixels.astype(found.dtype).ravel())
    message.data = padded.tobytes()[:-9]
    with pytest.raises(ValueError, match="step"):
        raw_pixels(message)


def test_imu_without_orientation_says_so():
    message = io.Imu()
    message.orientation_covariance[0] = -1.0
    assert np.isnan(messages.imu_array(message)[:4]).all()


def test_qos_table():
    state, command, latched = io.qos("state"), io.qos("command"), io.qos("latched")
    assert state.reliability == ReliabilityPolicy.BEST_EFFORT  # matches reliable publishers too
    assert command.liveliness == LivelinessPolicy.MANUAL_BY_TOPIC
    assert io.seconds(io.duration_message(io.LEASE)) == command.liveliness_lease_duration.nanoseconds * 1e-9
    assert latched.durability == DurabilityPolicy.TRANSIENT_LOCAL
    with pytest.raises(KeyError):
        io.qos("nothing")


def test_parameters_override_the_quality_of_service_and_a_wrong_word_is_refused():
    context = rclpy.Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    try:
        name = "qos_overrides./joint_states.subscription"
        given = [Parameter(f"{name}.reliability", value="reliable"), Parameter(f"{name}.depth", value=3)]
        node = Node("overrides", context=context, parameter_overrides=given, enable_rosout=False)
        health = Health(node, "arm")
        made = subscribe(node, io.JointState, "joint_states", lambda _: None, "state", health)
        assert made.qos_profile.reliability == ReliabilityPolicy.RELIABLE
        assert made.qos_profile.depth == 3
        plain = subscribe(node, io.JointState, "others", lambda _: None, "state", health)
        assert plain.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT  # as our table has it
        assert plain.qos_profile.depth == 8
        node.destroy_node()
        wrong = [Parameter(f"{name}.reliability", value="relaible")]
        node = Node("overrides", context=context, parameter_overrides=wrong, enable_rosout=False)
        with pytest.raises(ValueError, match=r"joint_states.*relaible.*expected reliability reliable or best_effort"):
            subscribe(node, io.JointState, "joint_states", lambda _: None, "state", Health(node, "arm"))
        node.destroy_node()
    finally:
        rclpy.try_shutdown(context=context)


def test_unknown_sensor_type_lists_the_known():
    with pytest.raises(ValueError, match="sensor_msgs/Imu"):
        io.message_type("sensor_msgs/LaserScan")
    assert io.message_type("sensor_msgs/msg/Imu") is io.Imu
