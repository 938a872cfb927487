"""Where a robot is while somebody drives it: listens, and never publishes a command or calls anything."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.inputs import RobotInputs
from robot_rl.real.ros.node_base import Health, node_beside


def positions(robot: RobotSpec, *, seconds: float, namespace: str = "", rate: float = 50.0) -> Iterator[np.ndarray]:
    """(J,) joint positions [rad, m] as they come.

    Args:
        robot: whose joints.
        seconds: how long to listen.
        namespace: of the robot's graph.
        rate: looks per second.
    """
    with node_beside("bounds", namespace=namespace) as node:
        inputs = RobotInputs(node, robot, Health(node, robot.name))
        end, before = time.monotonic() + seconds, -np.inf
        while time.monotonic() < end:
            state = inputs.latest(time.monotonic())
            if state is not None and state.stamp > before:
                before = state.stamp
                yield state.position
            time.sleep(1.0 / rate)
