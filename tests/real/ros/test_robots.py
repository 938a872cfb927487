"""Lockstep, and robots under efforts or twists, over DDS."""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

import time

import numpy as np
import pytest
from geometry_msgs.msg import Twist, TwistStamped
from nav_msgs.msg import Odometry
from ros_harness import RT, SLACK, SPEC, SUPERVISOR, stream, wait
from std_msgs.msg import Float64MultiArray

from robot_rl.real.ros.io import JointState, qos, seconds, time_message

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]
BASE = """
name: base
command_mode: twist
controller_topic: cmd_vel
controller_timeout: 0.5
joints:
  - {name: linear_x, velocity: 1.0, acceleration: 2.0}
  - {name: angular_z, velocity: 2.0, acceleration: 4.0}
sensors:
  odom: {topic: odom, type: nav_msgs/Odometry, timeout: 0.4}
"""


def answers(station, processes, key, count):
    """Positions and stamps of a robot in lockstep that a foreign client answers `count` times, and its pace [1/s]."""
    out = station.node.create_publisher(Float64MultiArray, "alone/forward_command_controller/commands", 1)
    seen = []

    def answer(message):
        place = np.array(message.position)
        seen.append((seconds(message.header.stamp), place, time.monotonic()))
        goal = place + np.array([0.01, -0.02, 0.005]) * (1.0 - place)
        out.publish(Float64MultiArray(data=goal.tolist()))

    sub = station.node.create_subscription(JointState, "alone/joint_states", answer, qos("state"))
    space = ("-r", "__ns:=/alone")
    processes.start("sim_robot_node", "lockstep:=true", "publish_clock:=true", key=key, args=space)
    wait(lambda: len(seen) > count + 100, limit=60.0, what="answered ticks")
    processes.end(key)
    station.node.destroy_subscription(sub)
    station.node.destroy_publisher(out)
    first = next(i for i, item in enumerate(seen) if np.abs(item[1]).max() > 1e-6)
    # A first command that lands just behind its tick's wait moves the robot while it is still alone; the next one finds
    # it settling, and that tick is published once more, the robot where it was. Lockstep begins behind it.
    if seen[first + 1][0] == seen[first][0]:
        np.testing.assert_array_equal(seen[first + 1][1], seen[first][1])
        first += 1
    rows = seen[first : first + count]
    return [t for t, *_ in rows], np.array([q for _, q, _ in rows]), count / (rows[-1][2] - rows[0][2])


def test_lockstep_advances_one_period_per_answer_and_repeats_itself(processes, station):
    runs = [answers(station, processes, f"lockstep{k}", 300) for k in range(2)]
    (stamps, path, pace), (_, again, _) = runs
    np.testing.assert_allclose(np.diff(stamps), 0.01, atol=1e-6)  # no tick without an answer, none twice
    np.testing.assert_array_equal(path, again)  # bit for bit, whatever the machine did meanwhile
    assert path[-1][0] > 0.5
    assert pace > 20.0


@pytest.fixture
def one(processes, station):
    """A robot of another kind in the place of the usual one."""
    started = []

    def make(name, text):
        (processes.folder / f"{name}.yaml").write_text(text)
        station.states.clear()
        station.executed.clear()
        started.append(processes.start("sim_robot_node", RT, spec=f"{name}.yaml"))
        started.append(processes.start("safety_supervisor_node", *SUPERVISOR, spec=f"{name}.yaml"))
        station.wait_state("IDLE", limit=90.0)
        wait(lambda: station.enable().success, what="enable")
        station.wait_state("ARMED")
        return station

    yield make
    station.quiet()
    for key in ("safety_supervisor_node", "sim_robot_node"):
        processes.end(key)


def test_efforts_drive_the_joints_and_silence_brakes_them(one):
    robot = one("effort", SPEC.format(mode="forward_effort", timeout=0.3))
    push = [np.full(3, 4.0)]
    robot.driver.alter = lambda fields: {**fields, "field": "effort", "values": push[0][None]}
    robot.driver.on = True
    wait(lambda: np.abs(robot.last.velocity).min() > 0.4, what="motion")
    assert robot.last.value == pytest.approx([4.0] * 3)
    push[0] = np.array([-1e300, 4.0, 0.0])
    wait(lambda: robot.last.value[0] == -10.0, what="the largest effort")
    assert "c" in robot.last.flags
    robot.driver.on = False
    since = time.monotonic()
    robot.wait_state("ARMED", limit=3.0)
    wait(lambda: np.abs(robot.last.value).max() < 1e-6, limit=3.0, what="no effort")
    assert np.abs(robot.last.velocity).max() < 0.05  # measured: damped to rest, not let go
    assert time.monotonic() - since < 0.4 + 1.5 + SLACK
    rows = np.array([item.value for _, item in list(robot.executed)])
    assert np.abs(rows).max() <= 10.0
    steps = [item.period for _, item in list(robot.executed)][1:]
    # efforts grow no faster than allowed; beyond the velocity limit they are cut at once
    growth = np.diff(np.abs(rows), axis=0).max(axis=1)
    assert (growth <= 100.0 * np.maximum(steps, 0.02) + 1e-6).all()


def test_twists_drive_a_base_from_us_and_from_a_plain_cmd_vel_publisher(one):
    robot = one("base", BASE)
    sent, odometry = [], []
    robot.node.create_subscription(TwistStamped, "cmd_vel", sent.append, qos("hardware"))
    robot.node.create_subscription(Odometry, "odom", odometry.append, qos("state"))
    out = robot.node.create_publisher(TwistStamped, "robot_rl/command/twist_policy", qos("command"))
    wait(lambda: out.get_subscription_count() == 1, what="the supervisor")
    wait(lambda: odometry and sent, limit=30.0, what="odometry and commands")
    number = iter(range(1, 10**6))

    def ask(x, turn, sideways=0.0):
        message = TwistStamped()
        message.header.stamp, message.header.frame_id = time_message(time.time()), f"base{id(robot)}/{next(number)}"
        message.twist.linear.x, message.twist.linear.y, message.twist.angular.z = x, sideways, turn
        return message

    stream(out, lambda: ask(9.0, -1.0), 1.5)
    assert robot.last.authority == "policy"
    assert robot.last.value == pytest.approx([1.0, -1.0])
    assert odometry[-1].twist.twist.linear.x == pytest.approx(1.0, abs=1e-6)
    assert sent[-1].header.frame_id == "base_link"
    since = time.monotonic()
    robot.stopped_after(since, 0.4 + 0.5 + 0.02 + SLACK)
    robot.wait_state("ARMED")
    assert odometry[-1].pose.pose.position.x > 0.3
    stream(out, lambda: ask(0.1, 0.0, sideways=0.2), 0.3)  # it has no such axis
    wait(lambda: int(robot.diagnostic("safety_supervisor: safety")[2].get("dropped_joint_names", 0)) > 5)
    assert not np.any(robot.last.value)
    plain = robot.node.create_publisher(Twist, "robot_rl/external/cmd_vel", 10)
    wait(lambda: plain.get_subscription_count() == 1, what="the supervisor")
    message = Twist()
    message.linear.x = 0.5
    stream(plain, lambda: message, 1.0)
    assert robot.last.authority == "external"
    assert robot.last.value == pytest.approx([0.5, 0.0])
    rows = np.array([item.value for _, item in list(robot.executed)])
    steps = np.array([item.period for _, item in list(robot.executed)])[1:]
    change = np.abs(np.diff(rows, axis=0))
    assert (change <= np.maximum(steps, 0.02)[:, None] * np.array([2.0, 4.0]) + 1e-6).all()
