"""What a wiggle shows, from numbers: right joint, sign, how late, and a robot or supervisor that went silent."""

import threading

import numpy as np
import pytest
import rclpy
import yaml
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.timer import Timer
from ros_harness import SPEC, wait

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.io import JointState
from robot_rl.real.ros.wiggle import judge, try_timeout

ROBOT = RobotSpec.from_dict(yaml.safe_load(SPEC.format(mode="jtc", timeout=0.0)))
TIMES = np.arange(0.0, 2.0, 0.01)


def out_and_back(times: np.ndarray) -> np.ndarray:
    """0.01 rad out and back within 1.2 s."""
    return 0.005 * (1.0 - np.cos(2.0 * np.pi * np.clip(times, 0.0, 1.2) / 1.2))


def seen(joint: int, gain: float = 1.0, late: float = 0.0, of: slice = slice(None)) -> np.ndarray:
    moved = np.zeros((len(TIMES), 3))
    moved[:, joint] = gain * out_and_back(TIMES - late)
    return np.column_stack([TIMES, moved])[of]


TOLD = np.column_stack([TIMES, out_and_back(TIMES)])


@pytest.mark.parametrize("late", [0.0, 0.03, 0.08])
def test_delay_is_that_of_the_joint_whatever_its_gain(late: float) -> None:
    found = judge(ROBOT, 0, 0.01, seen(0, gain=0.7, late=late), TOLD)
    assert found.problems == []
    assert found.dead_time == {"j0": pytest.approx(late, abs=0.0051)}


@pytest.mark.parametrize(
    ("rows", "told", "words"),
    [
        (seen(1), TOLD, "told to move j0, the robot moved j1"),
        (seen(0, gain=-1.0), TOLD, "j0 moves the other way"),
        (seen(0, gain=0.0), TOLD, "it moved by 0.0000"),
        (seen(0, gain=0.0), TOLD * (1.0, 0.1), "the supervisor sent it at most 0.0010: it braked"),
        (seen(0), TOLD[:0], "the supervisor sent nothing"),
        (seen(0, of=slice(0, 50)), TOLD[100:], "joint states came no more"),
    ],
)
def test_what_is_wrong_is_named(rows: np.ndarray, told: np.ndarray, words: str) -> None:
    (problem,) = judge(ROBOT, 0, 0.01, rows, told).problems
    assert words in problem


@pytest.mark.live
def test_silence_is_told_by_the_driver_and_not_by_whoever_warns():
    """A robot without a controller of its own: its driver is who listens to the commands."""
    spec = RobotSpec.from_dict(yaml.safe_load(SPEC.format(mode="joint_command", timeout=0.1)))
    context = rclpy.Context()
    rclpy.init(context=context)
    nodes = {name: Node(name, context=context) for name in ("asks", "driver", "camera", "supervisor")}
    nodes["driver"].create_subscription(JointState, spec.controller_topic, lambda message: None, 10)
    warns: list[str] = ["camera"]

    def change(request: ChangeState.Request, response: ChangeState.Response) -> ChangeState.Response:
        if request.transition.id == Transition.TRANSITION_DEACTIVATE:
            timers.append(nodes["supervisor"].create_timer(0.2, speak))
        response.success = True
        return response

    def speak() -> None:
        for name in warns:
            nodes[name].get_logger().warning(f"{name} hears nothing")

    timers: list[Timer] = []
    nodes["supervisor"].create_service(ChangeState, "safety_supervisor/change_state", change)
    executor = SingleThreadedExecutor(context=context)
    for node in nodes.values():
        executor.add_node(node)
    thread = threading.Thread(target=executor.spin, daemon=True)
    thread.start()
    try:
        wait(lambda: nodes["asks"].get_subscriptions_info_by_topic(spec.controller_topic), what="the driver")
        assert "but driver says nothing" in try_timeout(nodes["asks"], spec).problems[0]
        warns.append("driver")
        found = try_timeout(nodes["asks"], spec)
        assert found.problems == []
        assert "driver hears nothing" in found.lines[0]
    finally:
        executor.shutdown()
        thread.join()
        for node in nodes.values():
            node.destroy_node()
        rclpy.shutdown(context=context)
