"""Tell a walking policy, or a base on wheels behind the supervisor, where to go, and hear what became of it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from std_msgs.msg import String

from robot_rl.real.core.spec import TWIST, RobotSpec
from robot_rl.real.ros.io import qos
from robot_rl.real.ros.node_base import node_beside

RATE = 20.0
"""Commands per second."""
_SETTLED = 1.5
"""Seconds after which the mean velocity begins to be taken."""


@dataclass(frozen=True)
class Steered:
    """What a robot's odometry said while it was steered.

    Args:
        state: of the safety supervisor at the end, "" where none was heard.
        moved: from the first to the last message [m]; None where there is no odometry.
        velocity: (3,) mean ahead, to the left [m/s] and turning [rad/s], after the first 1.5 s; None likewise.
    """

    state: str
    moved: float | None
    velocity: tuple[float, float, float] | None


def topics(spec: RobotSpec) -> tuple[str, str]:
    """Where the wanted velocity goes, and where odometry comes from.

    Raises:
        ValueError: this robot is not told velocities.
    """
    if spec.mode == TWIST:
        kinds = {s.kind: s.topic for s in spec.sensors.values()}
        return "robot_rl/external/cmd_vel", kinds.get("nav_msgs/Odometry", "odom")
    if not spec.velocity_command:
        raise ValueError(
            f"{spec.name} takes no velocities: its file has no sensor of type geometry_msgs/Twist, as that of legs "
            "has, and its command_mode is no twist"
        )
    return spec.sensors[spec.velocity_command].topic, "odom"


def steer(
    spec: RobotSpec, velocity: tuple[float, float, float], *, seconds: float, patience: float, namespace: str = ""
) -> Steered:
    """Publish a wanted velocity for a while, 20 times a second, then zero once.

    Legs' policies, ours and those of foreign clients, read it as an observation. To a base it goes as the command of a
    foreign client, which the safety supervisor takes with allow_external=true.

    Args:
        spec: of the robot.
        velocity: ahead, to the left [m/s] and turning [rad/s].
        seconds: how long.
        patience: seconds to wait for somebody who listens, and for legs until they are driven.
        namespace: of the robot's graph.

    Raises:
        ValueError: this robot is not told velocities, or nobody listens.
    """
    out, heard = topics(spec)
    rows: list[tuple[float, ...]] = []
    said = {"state": "", "authority": ""}
    lock = threading.Lock()

    def on_odometry(message: Odometry) -> None:
        place, twist = message.pose.pose.position, message.twist.twist
        with lock:
            rows.append((time.monotonic(), place.x, place.y, twist.linear.x, twist.linear.y, twist.angular.z))

    def on_word(key: str, message: String) -> None:
        said[key] = message.data

    with node_beside("steer", namespace=namespace) as node:
        publisher = node.create_publisher(Twist, out, qos("external"))
        node.create_subscription(Odometry, heard, on_odometry, qos("state"))
        for key, topic in (("state", "robot_rl/safety/state"), ("authority", "robot_rl/authority")):
            node.create_subscription(String, topic, partial(on_word, key), qos("latched"))
        end = time.monotonic() + patience

        def ready() -> bool:
            driven = spec.mode == TWIST or said["authority"] in ("policy", "external")
            return publisher.get_subscription_count() > 0 and driven

        while not ready():
            if time.monotonic() > end:
                alone = not publisher.get_subscription_count()
                why = "nobody listens" if alone else f"it is {said['state'] or 'silent'}"
                raise ValueError(
                    f"{spec.name} cannot be steered on {out}: {why} after {patience:g} s; is its deployment up, "
                    + ("with allow_external=true?" if spec.mode == TWIST else "with a policy, and enabled?")
                )
            time.sleep(0.05)
        wanted = Twist()
        wanted.linear.x, wanted.linear.y, wanted.angular.z = map(float, velocity)
        begin = time.monotonic()
        with lock:
            rows.clear()
        try:
            while time.monotonic() - begin < seconds:
                publisher.publish(wanted)
                time.sleep(1.0 / RATE)
        finally:
            with lock:
                kept = np.array(rows)
            publisher.publish(Twist())
            time.sleep(2.0 / RATE)  # so that it leaves before the node does
    if not len(kept):
        return Steered(said["state"], None, None)
    late = kept[kept[:, 0] > begin + min(_SETTLED, 0.5 * seconds)]
    mean = late[:, 3:].mean(0) if len(late) else np.full(3, np.nan)
    moved = float(np.linalg.norm(kept[-1, 1:3] - kept[0, 1:3]))
    return Steered(said["state"], moved, (float(mean[0]), float(mean[1]), float(mean[2])))
