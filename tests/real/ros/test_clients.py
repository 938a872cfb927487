"""Foreign clients, unmodified, and a game pad drive the robot under the same limits."""

import signal
import threading
import time

import numpy as np
import pytest
from ros_harness import NAMES, RT, SLACK, stream, wait
from sensor_msgs.msg import Joy
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_rl.real.ros.io import JointState

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]


@pytest.mark.parametrize("kind", ["commands", "joint_command"])
def test_plain_publisher_of_positions_drives_within_the_limits(live, kind):
    topic = f"robot_rl/external/{kind}"
    begin = time.monotonic()

    def goal():
        return [0.4 * np.sin(min(time.monotonic() - begin, 1.5))] * 3

    def message():
        return Float64MultiArray(data=goal()) if kind == "commands" else JointState(name=NAMES, position=goal())

    publisher = live.node.create_publisher(type(message()), topic, 10)
    wait(lambda: publisher.get_subscription_count() == 1, what="the supervisor")
    begin = time.monotonic()
    stream(publisher, message, 1.5)
    assert live.last.authority == "external"
    assert live.last.value[0] > 0.25
    live.check_limits()
    since = time.monotonic()
    live.stopped_after(since)  # silence brakes
    live.node.destroy_publisher(publisher)


def test_one_trajectory_without_stamp_is_travelled_and_ends_at_rest(live):
    publisher = live.node.create_publisher(JointTrajectory, "robot_rl/external/joint_trajectory", 10)
    wait(lambda: publisher.get_subscription_count() == 1, what="the supervisor")
    point = JointTrajectoryPoint(positions=[0.5, -0.5, 0.25])
    point.time_from_start.sec = 2
    publisher.publish(JointTrajectory(joint_names=NAMES, points=[point]))
    live.until(lambda: live.state == "ACTIVE", what="motion")
    live.until(lambda: np.allclose(live.last.value, [0.5, -0.5, 0.25], atol=5e-3), what="the goal")
    live.wait_state("ARMED")
    assert np.allclose(live.last.value, [0.5, -0.5, 0.25], atol=5e-3)
    live.check_limits()
    live.node.destroy_publisher(publisher)


def test_external_yields_to_the_policy(live):
    publisher = live.node.create_publisher(Float64MultiArray, "robot_rl/external/commands", 10)
    wait(lambda: publisher.get_subscription_count() == 1, what="the supervisor")
    live.active()
    stream(publisher, lambda: Float64MultiArray(data=[0.05] * 3), 0.5)
    assert live.last.authority == "policy"
    assert np.abs(live.last.value).max() < 1e-6
    live.node.destroy_publisher(publisher)


@pytest.mark.timing
def test_24_29_game_pad_drives_behind_its_dead_mans_switch_and_its_button_is_an_estop(live, processes):
    processes.start("teleop_node", RT, "joint_scale:=[0.5, 0.5, 0.5]", "teleop_timeout:=0.4")
    joy = live.node.create_publisher(Joy, "joy", 10)
    wait(lambda: joy.get_subscription_count() == 1, limit=60.0, what="the teleop node")

    def message(held, axis=1.0, estop=0):
        return Joy(axes=[axis, 0.0, 0.0], buttons=[0, estop, 0, 0, int(held)])

    stream(joy, lambda: message(False), 0.5)
    assert np.abs(live.last.value).max() < 1e-6  # full deflection, but nobody holds the switch
    for _ in range(5):  # the supervisor may hear of the teleop node seconds after we did
        stream(joy, lambda: message(True), 1.5)
        if live.last.authority == "human":
            break
    assert live.last.authority == "human", f"{live.states[-4:]}, {live.diagnostics}"
    stream(joy, lambda: message(True), 0.8)  # it may have begun just now
    assert live.last.value[0] > 0.1
    assert np.abs(live.last.value[1:]).max() < 1e-6
    since = time.monotonic()  # now silence: as good as released
    live.stopped_after(since, 0.4 + 0.3 + 0.25 + SLACK)
    live.check_limits()
    stream(joy, lambda: message(True), 0.5)
    stream(joy, lambda: message(True, estop=1), 0.3)
    live.wait_state("ESTOP", limit=2.0)
    assert processes.end("teleop_node", signal.SIGINT, limit=5.0) == 0  # row 42
    live.node.destroy_publisher(joy)


def test_24_switch_held_with_full_deflection_before_anybody_listens_takes_over_from_where_the_robot_is(live, processes):
    """Commands used to run ahead while nobody followed, until they were too far away to ever begin."""
    live.ready(arm=False)
    processes.start("teleop_node", RT, "teleop_timeout:=0.4")
    joy = live.node.create_publisher(Joy, "joy", 10)
    wait(lambda: joy.get_subscription_count() == 1, limit=60.0, what="the teleop node")
    wait(lambda: "teleop: operator" in live.diagnostics, limit=30.0, what="its diagnostics")
    pressing = threading.Thread(
        target=stream, args=(joy, lambda: Joy(axes=[1.0, 0.0, 0.0], buttons=[0, 0, 0, 0, 1]), 8.0)
    )
    pressing.start()
    wait(lambda: live.diagnostic("teleop: operator")[1] == "holds the robot", what="the switch")
    time.sleep(1.0)  # half a radian at that deflection; commands begin within 0.1 rad of the robot
    live.executed.clear()
    assert live.enable().success
    wait(lambda: live.executed and live.last.authority == "human", limit=4.0, what="the person's turn")
    assert live.executed[0][1].value[0] < 0.05
    pressing.join()
    live.check_limits()
    assert processes.end("teleop_node", signal.SIGINT, limit=5.0) == 0
    live.node.destroy_publisher(joy)


@pytest.mark.timing
def test_29_teleop_process_killed_with_the_switch_held_is_a_soft_stop(live, processes):
    processes.start("teleop_node", RT)
    joy = live.node.create_publisher(Joy, "joy", 10)
    wait(lambda: joy.get_subscription_count() == 1, limit=60.0, what="the teleop node")
    for _ in range(10):  # the first messages may be lost to discovery
        stream(joy, lambda: Joy(axes=[1.0, 1.0, 1.0], buttons=[0, 0, 0, 0, 1]), 1.0)
        if live.last.authority == "human":
            break
    assert live.last.authority == "human", f"{live.states[-4:]}, {live.diagnostics}"
    since = time.monotonic()
    processes.end("teleop_node", signal.SIGKILL)
    live.stopped_after(since, 0.3 + 0.25 + 0.2 + SLACK)
    live.wait_state("ARMED")
    wait(lambda: live.authority[-1] == "none", what="nobody's turn")
    live.check_limits()
    live.node.destroy_publisher(joy)
