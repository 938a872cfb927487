"""A person's device on ROS topics: game pad or space mouse, twist stream or leader arm, heard as plain values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from geometry_msgs.msg import TwistStamped
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Bool

from robot_rl.real.core.messages import joint_arrays, twist_array
from robot_rl.real.ros.node_base import Health, node_beside, subscribe

TOPICS = {"joy": "joy", "twist": "robot_rl/teleop/twist", "leader": "leader/joint_states"}
"""Device -> its topic, the same as of the teleop node."""


class RosHands:
    """Node `hil_hands`, with a thread for its callbacks.

    Args:
        device: joy, twist or leader.
        heard: called in that thread with what came: ("joy", (axes, buttons)), ("twist", (6,) [m/s, rad/s]),
            ("leader", joint -> position [rad]) and ("deadman", held).
        topic: of the device; "" takes that of `TOPICS`.
        namespace: of the topics.
    """

    def __init__(self, device: str, heard: Callable[[str, Any], None], *, topic: str = "", namespace: str = "") -> None:
        self._open = contextlib.ExitStack()
        node = self._open.enter_context(node_beside("hil_hands", namespace=namespace))
        health, topic = Health(node, "hands"), topic or TOPICS[device]
        if device == "joy":
            told = lambda m: heard("joy", (list(m.axes), list(m.buttons)))  # noqa: E731
            subscribe(node, Joy, topic, told, "event", health)
        elif device == "twist":
            subscribe(node, TwistStamped, topic, lambda m: heard("twist", twist_array(m)), "event", health)
        else:
            subscribe(node, JointState, topic, lambda m: heard("leader", _positions(m)), "state", health)
        subscribe(node, Bool, "robot_rl/deadman", lambda m: heard("deadman", bool(m.data)), "event", health)

    def close(self) -> None:
        """End node and thread."""
        self._open.close()


def _positions(message: JointState) -> dict[str, float]:
    names, position, _, _ = joint_arrays(message)
    return dict(zip(names, map(float, position)))
