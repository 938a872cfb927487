"""The G1 deployed as its user does it: card, policy card, the whole graph, a walk, and ways down."""
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportArgumentType=false

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import rclpy
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rcl_interfaces.msg import Parameter, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from ros_harness import ROOT, wait
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.io import JointState, hardware_values, qos
from tests.real.legs_world import G1, needs_g1

pytestmark = [pytest.mark.ros, pytest.mark.timeout(200), needs_g1]
TOPICS = ("controller_topic=", "controller_timeout=0.1", "states=joint_states", "imu=imu")
SAID = ("acceleration=400", *TOPICS, "stop=damp", "estop=brake")


def command(folder, *words, **more):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "robot_rl", *words], env=env, cwd=folder, text=True, **more)


class Walk:
    """A deployment of the G1, and who steers and watches it."""

    def __init__(self, folder, *more):
        self.spec = RobotSpec.load(folder / "g1.yaml")
        self.context = rclpy.Context()
        rclpy.init(context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = node = rclpy.create_node("watcher", context=self.context)
        self.odom, self.joints, self.sent, self.said, self.authority, self.state = [], [], [], [], "", ""
        kinds = (
            (Odometry, "odom", self._on_odom, "state"),
            (JointState, "joint_states", self._on_joints, "state"),
            (Float64MultiArray, self.spec.controller_topic, self._on_command, "hardware"),
            (String, "robot_rl/authority", lambda m: setattr(self, "authority", m.data), "latched"),
            (String, "robot_rl/safety/state", lambda m: setattr(self, "state", m.data), "latched"),
        )
        # the watcher must not count as a second controller, so it listens to commands only once the robot is driven
        self._late = kinds[2]
        for kind, topic, take, profile in (*kinds[:2], *kinds[3:]):
            node.create_subscription(kind, topic, take, qos(profile))
        self.steer = node.create_publisher(Twist, "cmd_vel", 1)
        self.estop = node.create_client(Trigger, "safety_supervisor/estop")
        self.set = node.create_client(SetParameters, "sim_robot/set_parameters")
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(node)
        self.thread = threading.Thread(target=self._spin, daemon=True)
        self.thread.start()
        words = ("deploy", "robot_spec=g1", "policy_path=g1", "trust=true", "auto_arm=true", *more)
        self.process = command(folder, *words, stderr=subprocess.PIPE)
        threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True).start()

    def _spin(self):
        with contextlib.suppress(Exception):
            self.executor.spin()

    def _on_odom(self, message):
        p, t = message.pose.pose.position, message.twist.twist
        self.odom.append((time.monotonic(), p.x, p.y, p.z, t.linear.x, t.linear.y, t.angular.z))

    def _on_joints(self, message):
        self.joints.append((time.monotonic(), np.array(message.effort), np.array(message.velocity)))

    def _on_command(self, message):
        self.sent.append(hardware_values(self.spec, message))

    def go(self, forward, turn, seconds):
        """Steer for a while; (6,) mean velocity of the trunk after the first 1.5 s."""
        wanted, begin = Twist(), time.monotonic()
        wanted.linear.x, wanted.angular.z = float(forward), float(turn)
        while time.monotonic() - begin < seconds:
            self.steer.publish(wanted)
            time.sleep(0.05)
        return np.array([row[4:] for row in list(self.odom) if row[0] > begin + 1.5]).mean(0)

    def pid(self, name):
        found = [re.search(rf"\] {name}: started, process (\d+)", line) for line in list(self.said)]
        return next(int(item[1]) for item in found if item)

    def down(self, since):
        """Wait until it lies still; (n,) times, (n, J) torques and (n, J) speeds from `since` on.

        How long that takes is the fall's own affair: damped legs slide, and a trunk that lies on its side rolls over.
        """

        def calm():
            rows = [row for row in list(self.joints) if row[0] > time.monotonic() - 1.0]
            return len(rows) > 50 and max(np.abs(row[2]).max() for row in rows) < 0.5

        wait(lambda: self.odom[-1][3] < 0.4, 10.0, "the fall")
        wait(calm, 15.0, "a second at rest")
        times, torques, speeds = zip(*(row for row in list(self.joints) if row[0] > since))
        return np.array(times), np.array(torques), np.array(speeds)

    def close(self):
        for one in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.executor.shutdown(1.0)
        self.thread.join(2.0)
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """A folder with the robot, its card and the policy's."""
    folder = tmp_path_factory.mktemp("legs")
    shutil.copytree(G1, folder / "g1")
    new = ("robot", "new", "g1/g1_12dof.urdf", "name=g1", "policy=g1/policy.yaml", *SAID)
    for words in (new, ("robot", "policy", "g1/policy.yaml", "robot=g1")):
        assert command(folder, *words, stdin=subprocess.DEVNULL).wait(100) == 0
    return folder


@pytest.fixture
def walk(cards, request):
    made = Walk(cards, *request.param)
    yield made
    made.close()


@pytest.mark.parametrize("walk", [()], indirect=True, ids=["100"])
@pytest.mark.parametrize("cause", ["estop", "imu", "supervisor"])
def test_g1_walks_where_it_is_told_through_the_bridge_and_goes_down_damped(walk, cause):
    wait(lambda: walk.authority == "policy", 90.0, f"a walk, it is {walk.state}: {walk.said}")
    assert walk.odom[-1][3] > 0.7
    effort = walk.spec.array("effort")
    first = len(walk.joints)
    if cause == "estop":
        begin = walk.odom[-1]
        mean = walk.go(0.6, 0.0, 9.0)
        assert mean[0] == pytest.approx(0.6, abs=0.1)
        assert walk.odom[-1][1] - begin[1] > 3.5  # metres
        assert walk.go(0.3, 0.5, 6.0)[2] == pytest.approx(0.5, abs=0.15)
        assert abs(walk.go(0.0, 0.0, 5.0)[0]) < 0.1
    else:
        walk.go(0.5, 0.0, 3.0)
    assert walk.state == "ACTIVE"
    assert (np.abs([row[1] for row in walk.joints[first:]]).max(0) <= effort).all()
    since = time.monotonic()
    if cause == "estop":
        walk.estop.call_async(Trigger.Request())
        wait(lambda: walk.state == "ESTOP", 3.0, "the stop")
    elif cause == "imu":
        value = ParameterValue(type=1, bool_value=True)
        walk.set.wait_for_service(10.0)
        walk.set.call_async(SetParameters.Request(parameters=[Parameter(name="inject.imu_silent", value=value)]))
        wait(lambda: walk.state in ("STOPPING", "FAULT"), 3.0, "the fault")
        wait(lambda: any("state_stale: imu is" in line for line in walk.said), 3.0, "the fault's numbers")
    else:  # nobody is left to command anything: the driver's own timeout
        os.kill(walk.pid("safety_supervisor"), signal.SIGSTOP)
    if cause != "supervisor":
        kind, topic, take, profile = walk._late
        walk.node.create_subscription(kind, topic, take, qos(profile))
        wait(lambda: walk.sent, 5.0, "a command")
        assert not walk.sent[-1][3].any()  # kp
        assert walk.sent[-1][4].tolist() == walk.spec.array("kd").tolist()
    times, torques, speeds = walk.down(since)
    assert (np.abs(torques) <= effort).all()
    damped = times > since + 0.5  # the stop's own delay: timeouts of 0.1 s, and messages on their way
    unlike = np.abs(torques + walk.spec.array("kd") * speeds)[damped].max(1)
    assert np.percentile(unlike, 75) < 0.5  # N m; speeds are those of a physics step later, which shows at blows
    assert ((torques * speeds)[damped].sum(0) < 0.0).all()  # no joint is driven


@pytest.mark.slow
@pytest.mark.parametrize("walk", [("rate=50",), ("rate=100",)], indirect=True, ids=["50", "100"])
def test_g1_walks_twenty_metres_within_forty_seconds_through_the_bridge(walk):
    wait(lambda: walk.authority == "policy", 90.0, f"a walk, it is {walk.state}: {walk.said}")
    begin = np.array(walk.odom[-1][1:3])
    since = time.monotonic()
    walk.go(0.8, 0.0, 26.0)
    while np.linalg.norm(np.array(walk.odom[-1][1:3]) - begin) < 20.0:
        assert time.monotonic() - since < 40.0
        walk.go(0.8, 0.0, 2.0)
    assert walk.state == "ACTIVE"
