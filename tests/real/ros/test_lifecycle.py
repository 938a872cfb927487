"""Nodes and their loops: what configuring makes, cleaning up takes away; where they speak; one thread ticks."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rclpy
import yaml
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from robot_rl.real.core.sensor_spec import SensorSpec
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import find_file
from robot_rl.real.ros.endpoints import SharedSwitch
from robot_rl.real.ros.inputs import RobotInputs
from robot_rl.real.ros.io import joint_state
from robot_rl.real.ros.node_base import ControlLoop, Health, node_beside
from robot_rl.real.ros.safety_supervisor_node import SafetySupervisorNode
from robot_rl.real.ros.sim_robot_node import SimRobotNode

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]


def test_a_supervisor_that_is_configured_again_hears_and_tells_everything_once():
    context = rclpy.Context()
    words = ["--ros-args", "-p", f"robot_spec:={find_file('desk_arm')}"]
    rclpy.init(args=words, context=context, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = SafetySupervisorNode(lambda *_: lambda place: place[:3], context=context)

        def there():
            return sorted(f"{type(item).__name__} {id(item)}" for _, items in node._entities() for item in items)

        def kinds():
            return sorted(type(item).__name__ for _, items in node._entities() for item in items)

        before = there()
        assert node.trigger_configure().name == "SUCCESS"
        made = kinds()
        assert len(made) > len(before) + 10
        assert node.trigger_cleanup().name == "SUCCESS"
        assert there() == before
        assert node.trigger_configure().name == "SUCCESS"
        assert kinds() == made
        node.destroy_node()
    finally:
        rclpy.try_shutdown(context=context)


def test_a_simulated_robot_tells_its_joints_where_its_file_says_and_has_its_faults_from_the_start(tmp_path):
    arm = yaml.safe_load(Path(find_file("desk_arm")).read_text())
    arm["sensors"] = {"arm": {"topic": "left/joint_states", "type": "sensor_msgs/JointState"}}
    (tmp_path / "arm.yaml").write_text(yaml.safe_dump(arm))
    context = rclpy.Context()
    words = ["--ros-args", "-p", f"robot_spec:={tmp_path / 'arm.yaml'}", "-p", "inject.blocked:=true"]
    words += ["-p", "inject.split:=true"]
    rclpy.init(args=words, context=context, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = SimRobotNode(lambda *_, **__: pytest.fail("joints without a model"), context=context)
        assert [item.topic_name for item in node._states] == ["/left/joint_states"] * 2
        assert node.plant.blocked.all()
        node._on_reset(Trigger.Request(), Trigger.Response())
        assert node.plant.blocked.all()
        node.wind_down()
        node.destroy_node()
    finally:
        rclpy.try_shutdown(context=context)


def test_a_loop_that_is_stopped_and_started_within_a_tick_ticks_in_one_thread():
    ticks, stopped = [], threading.Event()

    def tick(_):
        ticks.append(threading.get_ident())
        if not stopped.is_set():
            loop.stop()
            stopped.set()
            time.sleep(0.05)

    loop = ControlLoop(100.0, tick, on_error=lambda error: pytest.fail(str(error)))
    loop.start()
    stopped.wait(5.0)
    loop.start()
    time.sleep(0.3)
    loop.stop()
    assert len(ticks) > 3
    assert len(set(ticks[1:])) == 1


def test_a_loop_tells_its_period_lateness_and_work_in_milliseconds():
    loop = ControlLoop(100.0, lambda _: None, on_error=lambda error: pytest.fail(str(error)))
    late = [0.0] + [0.001] * 98 + [0.006, 0.0]  # 99 periods of 10 or 11 ms, one of 15 and one of 4
    for k, lateness in enumerate(late):
        loop.log.add(0.01 * k, lateness, 0.002 if k < 60 else 0.003, np.nan, 0)
    told = loop.summary()
    assert told["rate"] == pytest.approx(100.0)
    assert told["period_p50_ms"] == pytest.approx(10.0)
    assert (told["period_p99_ms"], told["period_max_ms"]) == pytest.approx((15.0, 15.0))
    assert (told["lateness_p50_ms"], told["lateness_p99_ms"]) == pytest.approx((1.0, 6.0))
    assert (told["compute_p50_ms"], told["compute_p99_ms"]) == pytest.approx((2.0, 3.0))


def test_a_required_sensor_that_never_came_is_late_though_the_joints_are_heard():
    imu = SensorSpec("imu", "sensor_msgs/Imu")
    spec = replace(RobotSpec.load(find_file("desk_arm")), sensors={"imu": imu})
    with node_beside("hears") as node:
        inputs = RobotInputs(node, spec, Health(node, "arm"))
        joints = node.create_publisher(JointState, "joint_states", 1)
        end = time.monotonic() + 10.0
        while inputs.latest(time.monotonic()) is None and time.monotonic() < end:
            joints.publish(joint_state(spec.names, np.zeros(6), np.zeros(6), None, time.time()))
            time.sleep(0.02)
        now = time.monotonic()
        assert inputs.age("joint_states", now) < 1.0
        assert inputs.age("imu", now) == np.inf
        assert inputs.late(now) == ["imu"]


def test_an_estop_that_two_have_pressed_is_released_by_both():
    """A person's click, which lets go at once, does not release the button that somebody else holds."""
    context = rclpy.Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = rclpy.create_node("hears", context=context)
        button, click = (node.create_publisher(Bool, "robot_rl/estop", 1) for _ in range(2))
        switch = SharedSwitch(node, "robot_rl/estop")

        def there():
            return [bytes(item.endpoint_gid) for item in node.get_publishers_info_by_topic("/robot_rl/estop")]

        def told(gid, on):
            return switch.pressed(on, {"publisher_gid": {"data": gid, "implementation_identifier": "rmw_fastrtps_cpp"}})

        first, second = there()
        assert told(first, True)
        assert told(second, True)
        assert told(second, False)  # the other one holds it still
        assert not told(first, False)
        assert told(first, True)
        node.destroy_publisher(button)
        node.destroy_publisher(click)
        assert not told(b"another", False)  # who has gone holds nothing
        assert switch.pressed(True, None)  # a middleware that does not tell who speaks
        assert not switch.pressed(False, None)
        node.destroy_node()
    finally:
        rclpy.try_shutdown(context=context)
