"""Devices on ROS topics as hands of a session: game pad, space mouse, twists and leader arm, published for real."""

import time

import numpy as np
import pytest
from geometry_msgs.msg import TwistStamped, Vector3
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Bool

from robot_rl.types import IOSpec

pytest.importorskip("aiohttp", reason="the console needs aiohttp (extra console)")
from robot_rl.human.devices.ros import LeaderMoves, RosOptions, RosTeleop
from robot_rl.real.ros.hands import RosHands

harness = pytest.importorskip("ros_harness")
wait = harness.wait
TOOL = IOSpec(
    {"state": ((2,), "float32")}, ("tip_dx", "tip_dy", "tip_dz", "gripper"), (-0.1,) * 3 + (-1.0,), (0.1,) * 3 + (1.0,),
    ("m",) * 3 + ("1",), 10.0,
)  # fmt: skip


@pytest.fixture
def device(another):
    """Opens hands, and says on their topics what a driver would."""
    node, made = another("driver"), []

    def make(io, **options):
        made.append(RosTeleop(RosOptions(port=0, speed=1.0, **options), io, listen=RosHands, announce=False))
        return node, made[-1]

    yield make
    for item in made:
        item.close()


def until(hands, out, message, what, seconds=20.0):
    """Say it at 30 Hz until a reading is as expected."""
    end = time.monotonic() + seconds
    reading = None
    while time.monotonic() < end:
        for publisher, said in zip(out, message):
            publisher.publish(said)
        time.sleep(0.033)
        reading = hands.read(time.monotonic(), {}, np.zeros(4, np.float32))
        if what(reading):
            return reading
    raise AssertionError(f"not within {seconds} s: {reading}")


def pad(axes=(0.0,) * 8, down=()):
    return Joy(axes=list(axes), buttons=[int(i in down) for i in range(11)])


def test_game_pad_drives_labels_stops_and_is_lost_when_it_falls_silent(device):
    node, hands = device(TOOL)
    stopped = []
    hands.on_stop = lambda: stopped.append(time.monotonic())
    out = [node.create_publisher(Joy, "joy", 10)]
    push = [0.5, 1.0, 0.0, 0.0, -1.0, 0.0, 0.0, -1.0]  # y, x, z of the default layout, and the cross down
    reading = until(hands, out, [pad(push, down=(5,))], lambda r: r.enable)
    np.testing.assert_allclose(reading.value, [1.0, (0.5 - 0.05) / 0.95, -1.0, -1.0], atol=1e-6)
    assert reading.connected
    time.sleep(0.4)  # the driver is gone while a person drove
    reading = hands.read(time.monotonic(), {}, np.zeros(4, np.float32))
    assert not reading.connected
    assert not reading.enable
    until(hands, out, [pad(down=(0,))], lambda r: [press.kind for press in r.presses] == ["success"])
    assert until(hands, out, [pad(down=(6,))], lambda r: bool(r.presses)).presses[0].kind == "estop"
    assert len(stopped) == 1  # by the thread that heard it


def test_space_mouse_is_a_joy_with_its_own_layout(device):
    layout = {"x": 0, "y": 1, "z": 2, "roll": 3, "pitch": 4, "yaw": 5}
    node, hands = device(TOOL, topic="spacenav/joy", axes=layout, enable_button=0, invert=("y",))
    out = [node.create_publisher(Joy, "spacenav/joy", 10)]
    said = Joy(axes=[0.0, 1.0, -0.3, 0.0, 0.0, 0.0], buttons=[1, 0])
    reading = until(hands, out, [said], lambda r: r.enable)
    assert reading.presses == ()  # button 0 is the dead-man here, and no label
    np.testing.assert_allclose(reading.value, [0.0, -1.0, -(0.3 - 0.05) / 0.95, 1.0], atol=1e-6)


def test_twists_are_shares_of_the_full_speed_under_a_dead_man_on_its_own_topic(device):
    node, hands = device(TOOL, kind="twist", linear=0.2, dead_zone=0.0)
    out = [
        node.create_publisher(TwistStamped, "robot_rl/teleop/twist", 10),
        node.create_publisher(Bool, "robot_rl/deadman", 10),
    ]
    twist = TwistStamped()
    twist.twist.linear = Vector3(x=0.1, y=-0.4, z=0.0)
    reading = until(hands, out, [twist, Bool(data=True)], lambda r: r.enable)
    np.testing.assert_allclose(reading.value[:3], [0.5, -1.0, 0.0], atol=1e-6)
    reading = until(hands, out, [twist, Bool(data=False)], lambda r: not r.enable)
    assert reading.connected
    until(hands, out, [twist, Bool(data=True)], lambda r: r.enable)
    time.sleep(0.4)
    until(hands, out[:1], [twist], lambda r: not r.enable)  # a dead-man that nobody repeats is let go


def test_leader_arm_moves_the_robot_by_what_it_moved_since_it_was_gripped(device):
    joints = IOSpec({"state": ((2,), "float32")}, ("a_delta", "b_delta"), (-0.1, -0.1), (0.1, 0.1), ("rad",) * 2, 10.0)
    node, hands = device(joints, kind="leader")
    out = [
        node.create_publisher(JointState, "leader/joint_states", 1),
        node.create_publisher(Bool, "robot_rl/deadman", 10),
    ]
    start = JointState(name=["b", "a"], position=[1.0, 2.0])
    until(hands, out, [start, Bool(data=False)], lambda r: r.connected)
    until(hands, out, [start, Bool(data=True)], lambda r: r.enable and not r.value.any())
    moved = JointState(name=["b", "a"], position=[0.95, 2.25])
    got = np.zeros(2)
    for _ in range(40):
        for publisher, said in zip(out, [moved, Bool(data=True)]):
            publisher.publish(said)
        time.sleep(0.02)
        got += 0.1 * hands.read(time.monotonic(), {}, np.zeros(2, np.float32)).value
    np.testing.assert_allclose(got, [0.25, -0.05], atol=1e-6)  # all of it, in steps of 0.1 rad at most
    far = JointState(name=["b", "a"], position=[0.0, 0.0])  # put back with the clutch open: the robot stays
    until(hands, out, [far, Bool(data=False)], lambda r: not r.enable)
    until(hands, out, [far, Bool(data=True)], lambda r: r.enable)
    reading = until(hands, out, [far, Bool(data=True)], lambda r: r.enable)
    assert not reading.value.any()


def test_the_handle_of_a_leader_opens_the_gripper_of_pick():
    io = IOSpec(
        {"state": ((2,), "float32")}, ("a_delta", "gripper_opening"), (-0.1, 0.0), (0.1, 0.08), ("rad", "m"), 10.0
    )  # fmt: skip
    moves = LeaderMoves(io, 1.0, ("handle", -0.2, 1.8))
    np.testing.assert_allclose(moves.value({"a": 1.0, "handle": 0.8}, True, 0.0), [0.0, 0.0], atol=1e-6)  # half way
    np.testing.assert_allclose(
        moves.value({"a": 1.05, "handle": 1.8}, True, 0.1), [0.25, 1.0], atol=1e-6
    )  # half of the clutch
    np.testing.assert_allclose(moves.value({"a": 1.05, "handle": -0.5}, True, 0.2), [0.25, -1.0], atol=1e-6)
    np.testing.assert_allclose(moves.value({"a": 0.5, "handle": 0.8}, False, 0.3), [0.0, -1.0], atol=1e-6)  # it keeps
    assert not moves.value({"a": 0.5}, True, 0.4)[:1].any()  # nobody says where the handle is: nothing moves
    with pytest.raises(ValueError, match="give both ends"):
        LeaderMoves(io, 1.0, ("handle", 0.5, 0.5))


def test_wrong_layouts_and_wrong_robots_are_named():
    with pytest.raises(ValueError, match="buttons names fly; expected some of success"):
        RosTeleop(RosOptions(port=0, buttons={"fly": 1}), TOOL, listen=RosHands, announce=False)
    with pytest.raises(ValueError, match="the action tip_dx does not"):
        RosTeleop(RosOptions(port=0, kind="leader"), TOOL, listen=RosHands, announce=False)
