"""The topics on which others ask the supervisor for motion, and how their messages become commands for its pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from geometry_msgs.msg import Twist, TwistStamped
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.lifecycle import LifecycleNode
from rclpy.subscription import Subscription
from std_msgs.msg import Float64MultiArray

from robot_rl.real.core.alignment import SimulatedStamps
from robot_rl.real.core.intake import CommandMessage
from robot_rl.real.core.pipeline import CommandPipeline
from robot_rl.real.core.spec import FIELDS, TWIST, RobotSpec
from robot_rl.real.ros.io import JointState, JointTrajectory, qos, read_command, read_step, read_twist
from robot_rl.real.ros.node_base import Health, note_mismatch, subscribe
from robot_rl.real.ros.sender_clocks import Receipt, SenderClocks

SOURCES = {"policy": "policy", "teleop": "human"}
"""Last part of the topic -> source of the pipeline."""


class CommandTopics:
    """Subscribes and hands over; judging is the pipeline's.

    `robot_rl/command/policy` and `command/teleop` take JointTrajectory; in a twist mode also `command/twist_policy`
    and `command/twist_teleop` take TwistStamped, whose stamp and frame_id mean the same.

    Args:
        node: that owns the subscriptions.
        spec: of the robot.
        pipeline: that judges.
        health: for QoS mismatches.
        simulated_time: stamps are of /clock.
        external_hold: seconds for which a step of a foreign client stays fresh; None = no foreign clients.
        external_stamped: `external/cmd_vel` is TwistStamped, not Twist.

    Attributes:
        made: the subscriptions.
        watched: topics that only known nodes may publish on.
    """

    def __init__(
        self,
        node: LifecycleNode,
        spec: RobotSpec,
        pipeline: CommandPipeline,
        health: Health,
        *,
        simulated_time: bool,
        external_hold: float | None = None,
        external_stamped: bool = False,
    ) -> None:
        self._node, self._spec, self._pipeline, self._health = node, spec, pipeline, health
        self._clocks = SenderClocks(node)
        self._simulated, self._hold = simulated_time, external_hold
        self._stamps = {source: SimulatedStamps() for source in SOURCES.values()}
        self.made: list[Subscription] = []
        for end, source in SOURCES.items():
            self._listen(f"robot_rl/command/{end}", JointTrajectory, source)
            if spec.mode == TWIST:
                self._listen(f"robot_rl/command/twist_{end}", TwistStamped, source)
        self.watched = tuple(item.topic_name for item in self.made)
        if external_hold is not None:
            self._open_external(external_stamped)

    def _listen(self, topic: str, kind: Any, source: str) -> None:
        def lost(event: Any) -> None:
            if event.not_alive_count_change > 0:
                self._pipeline.source_lost(source)

        events = SubscriptionEventCallbacks(
            liveliness=lost,
            incompatible_qos=lambda event: note_mismatch(self._health, topic, event),
        )

        def take(message: Any, info: object) -> None:
            receipt = self._clocks.receipt(info, time.monotonic())
            if isinstance(message, JointTrajectory):
                command = read_command(message, source)
            else:
                command = read_twist(message, self._spec.names, source)
            self._offer(replace(command, sender=receipt.sender, offset=receipt.offset), receipt)

        self.made.append(self._node.create_subscription(kind, topic, take, qos("command"), event_callbacks=events))

    def _offer(self, command: CommandMessage, receipt: Receipt) -> None:
        if self._simulated:
            stamp = self._stamps[command.source].steady(receipt.arrival, receipt.told, command.stamp)
            command = replace(command, stamp=stamp, offset=0.0)
        self._pipeline.offer(command, receipt.arrival)

    # ------------------------------------------------------------ foreign clients, without our stamps and numbers

    def _open_external(self, stamped: bool) -> None:
        def listen(end: str, kind: Any, take: Any) -> None:
            self.made.append(subscribe(self._node, kind, f"robot_rl/external/{end}", take, "external", self._health))

        names = self._spec.names
        if self._spec.mode == TWIST:
            listen("cmd_vel", TwistStamped if stamped else Twist, self._twist)
            return
        listen("joint_trajectory", JointTrajectory, self._trajectory)
        listen("commands", Float64MultiArray, lambda message: self._step(names, message.data))
        read: Callable[[JointState], Any] = {
            "positions": lambda message: message.position,
            "velocities": lambda message: message.velocity,
            "effort": lambda message: message.effort,
        }[FIELDS[self._spec.mode]]
        listen("joint_command", JointState, lambda message: self._step(message.name, read(message)))

    def _trajectory(self, message: JointTrajectory) -> None:
        command = read_command(message, "external")
        self._pipeline.offer(replace(command, stamp=0.0), time.monotonic())

    def _step(self, names: Any, values: Any) -> None:
        assert self._hold is not None
        self._pipeline.offer(read_step(names, values, FIELDS[self._spec.mode], hold=self._hold), time.monotonic())

    def _twist(self, message: Twist | TwistStamped) -> None:
        assert self._hold is not None
        command = read_twist(message, self._spec.names, "external", hold=self._hold)
        self._pipeline.offer(replace(command, stamp=0.0), time.monotonic())
