"""Where a robot is while somebody drives it: listens, and never publishes a command or calls anything."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import rclpy
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.inputs import RobotInputs
from robot_rl.real.ros.node_base import Health


def positions(robot: RobotSpec, *, seconds: float, namespace: str = "", rate: float = 50.0) -> Iterator[np.ndarray]:
    """(J,) joint positions [rad, m] as they come.

    Args:
        robot: whose joints.
        seconds: how long to listen.
        namespace: of the robot's graph.
        rate: looks per second.
    """
    context = Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("bounds", context=context, namespace=namespace or None, enable_rosout=False)
    inputs = RobotInputs(node, robot, Health(node, robot.name))
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    over = threading.Event()

    def spin() -> None:
        with contextlib.suppress(ExternalShutdownException):
            while not over.is_set():
                executor.spin_once(timeout_sec=0.1)

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        end, before = time.monotonic() + seconds, -np.inf
        while time.monotonic() < end:
            state = inputs.latest(time.monotonic())
            if state is not None and state.stamp > before:
                before = state.stamp
                yield state.position
            time.sleep(1.0 / rate)
    finally:
        over.set()
        thread.join(1.0)
        with contextlib.suppress(Exception):
            executor.shutdown(timeout_sec=0.5)
        node.destroy_node()
        rclpy.try_shutdown(context=context)
