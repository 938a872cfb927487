"""A person's hands on the robot's topics: game pad, twist stream or leader arm, always behind a dead-man's switch."""
# pyright: reportIndexIssue=false
# (fields of messages are lists in truth; rclpy's stubs say less)

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import Joy
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger

from robot_rl.real.core.alignment import JointMerger
from robot_rl.real.core.messages import joint_arrays, twist_array
from robot_rl.real.core.scheduler import Tick
from robot_rl.real.core.spec import POSITION, RobotSpec
from robot_rl.real.operator import Edge, JointSteer, LeaderFollow, deadband, pick, refuse_hands
from robot_rl.real.ros.inputs import RobotInputs
from robot_rl.real.ros.io import (
    FIELDS,
    JointState,
    JointTrajectory,
    TwistStamped,
    trajectory,
)
from robot_rl.real.ros.node_base import OK, WARN, ControlLoop, Health, publisher, spare_garbage, subscribe
from robot_rl.real.ros.parameters import check_parameters, declare

MODES = ("joy", "twist", "leader")

JacobianOf = Callable[[str, str, Sequence[str]], Callable[[np.ndarray], np.ndarray]]
"""(model, site, joints) -> function (J,) joint positions -> (6, J) of the tool."""


class TeleopNode(Node):
    """See docs/ros2.md for topics and parameters."""

    def __init__(self, jacobian_of: JacobianOf, **options: Any) -> None:
        """Read the parameters, open the topics, begin.

        Args:
            jacobian_of: for twists.
            options: of the node.
        """
        super().__init__("teleop", **options)
        path = declare(self, "robot_spec", "", "path of the RobotSpec YAML")
        if not path:
            raise ValueError("robot_spec is empty; give the path of the robot's YAML")
        self.spec = spec = RobotSpec.load(path)
        self._mode = declare(self, "mode", "joy", "joy, twist or leader")
        if self._mode not in MODES:
            raise ValueError(f"mode is {self._mode!r}, expected one of {', '.join(MODES)}")
        if refused := refuse_hands(self._mode, spec):
            raise ValueError(refused)
        count = len(spec.joints)
        self._rate = declare(self, "rate", 50.0, "commands per second", low=10.0, high=1000.0)
        self._timeout = declare(self, "teleop_timeout", 0.25, "older input counts as released [s]", low=0.01, high=5.0)
        self._deadman = declare(self, "deadman_button", 4, "button that must be held; -1 = topic robot_rl/deadman")
        self._estop_button = declare(self, "estop_button", 1, "latches the e-stop, -1 = none", low=-1)
        self._success_button = declare(self, "success_button", -1, "labels a success, -1 = none", low=-1)
        self._failure_button = declare(self, "failure_button", -1, "labels a failure, -1 = none", low=-1)
        self._axes = declare(self, "joint_axes", list(range(count)), "axis of each joint, -1 = none")
        self._scale = declare(self, "joint_scale", [0.5] * count, "speed of each joint at full deflection [rad/s]")
        self._twist_axes = declare(self, "twist_axes", [-1] * 6, "axes of vx vy vz wx wy wz; any >= 0 steers the tool")
        self._twist_scale = declare(self, "twist_scale", [0.1] * 3 + [0.5] * 3, "speeds at full deflection")
        self._band = declare(self, "deadband", 0.05, "ignored middle of every axis", low=0.0, high=0.5)
        catch_up = declare(self, "leader_catch_up", 0.5, "speed to the leader's own pose, 0 = never [rad/s]", low=0.0)
        priority = declare(self, "realtime", 0, "SCHED_FIFO priority of the loop, 0 = ordinary", high=98)
        model = declare(self, "model", "", "MuJoCo model of the robot, for twists")
        site = declare(self, "site", "tip", "its tool site")
        check_parameters(self, sys.argv)
        if len(self._axes) != count or len(self._scale) != count:
            raise ValueError(f"joint_axes and joint_scale need {count} entries: one per joint")
        jacobian = None
        if model:
            jacobian = jacobian_of(model, site, spec.names)
        elif self._mode == "twist" or max(self._twist_axes) >= 0:
            raise ValueError("steering the tool needs model:= and site:=, the MuJoCo model of the robot")
        self.steer = JointSteer(spec, self._rate, jacobian=jacobian)
        self.health = Health(self, spec.name)
        self.inputs = RobotInputs(self, spec, self.health)
        self._joy: tuple[Joy, float] | None = None
        self._twist: tuple[TwistStamped, float] | None = None
        self._leader = JointMerger(spec.names, spec.turning)
        self._follow = LeaderFollow(self._rate, catch_up)
        self._held: tuple[bool, float] = (False, -np.inf)
        self._followed = False
        self._present: tuple[np.ndarray, float] | None = None
        self._edges = {name: Edge() for name in ("estop", "success", "failure")}
        self._seq, self._was_held, self._tag = 0, False, f"teleop-{self._mode}.{secrets.token_hex(2)}"
        self._open()
        self.loop = ControlLoop(self._rate, self._tick, on_error=self._on_error, priority=int(priority))
        self.health.watch_loop(self.loop)
        self.health.add("operator", self._aspect)
        spare_garbage()  # a collection in its course would make a silence of a fault's length
        self.loop.start()

    def _open(self) -> None:
        health = self.health
        subscribe(self, Joy, "joy", self._on_joy, "event", health)
        subscribe(self, Bool, "robot_rl/deadman", self._on_deadman, "event", health)
        if self._mode == "twist":
            subscribe(self, TwistStamped, "robot_rl/teleop/twist", self._on_twist, "event", health)
        if self._mode == "leader":
            subscribe(self, JointState, "leader/joint_states", self._on_leader, "state", health)
        subscribe(self, JointTrajectory, "robot_rl/executed", self._on_executed, "record", health)
        subscribe(self, String, "robot_rl/authority", self._on_authority, "latched", health)
        self._out = publisher(self, JointTrajectory, "robot_rl/command/teleop", "command", health)
        self._takeover = publisher(self, Bool, "robot_rl/takeover", "takeover", health)
        self._estop = publisher(self, Bool, "robot_rl/estop", "event", health)
        self._labels = {name: self.create_client(Trigger, f"robot_env/label_{name}") for name in ("success", "failure")}

    def wind_down(self) -> None:
        """Let go."""
        self.loop.stop()
        self._takeover.publish(Bool(data=False))
        self._send(None)

    # ------------------------------------------------------------ callbacks

    def _on_joy(self, message: Joy) -> None:
        self._joy = (message, time.monotonic())

    def _on_deadman(self, message: Bool) -> None:
        self._held = (bool(message.data), time.monotonic())

    def _on_twist(self, message: TwistStamped) -> None:
        self._twist = (message, time.monotonic())

    def _on_leader(self, message: JointState) -> None:
        names, position, velocity, _ = joint_arrays(message)
        self._leader.add(time.monotonic(), names, position, velocity)

    def _on_executed(self, message: JointTrajectory) -> None:
        self._present = (np.array(message.points[0].positions, float), time.monotonic())

    def _on_authority(self, message: String) -> None:
        self._followed = message.data == "human"

    # ------------------------------------------------------------ one tick

    def _tick(self, tick: Tick) -> float | None:
        now = time.monotonic()
        self._out.assert_liveliness()
        state = self.inputs.latest(now)
        joy = self._joy[0] if self._joy is not None and now - self._joy[1] <= self._timeout else None
        self._buttons(joy)
        held = self._is_held(joy, now)
        if held or self._was_held or tick.index % max(int(self._rate / 10.0), 1) == 0:
            self._takeover.publish(Bool(data=held))
        if not held:
            if self._was_held:
                self._release()
                self._send(None)
            self._was_held = False
            return None
        self._was_held = True
        if state is None:
            return None
        if not self._followed:
            self._release()  # until the robot follows, commands begin where it is, or it never could
        fresh = self._present is not None and now - self._present[1] < 0.1 and len(self._present[0])
        present = self._present[0] if fresh and self._present is not None else state.position
        value = self._command(joy, present, now)
        if value is not None:
            self._send(value)
        return now - state.stamp

    def _release(self) -> None:
        self.steer.release()
        self._follow.release()

    def _is_held(self, joy: Joy | None, now: float) -> bool:
        by_topic = self._held[0] and now - self._held[1] <= self._timeout
        if self._deadman >= 0 and not (self._mode == "leader" and by_topic):  # whose hands are on the leader has no pad
            return joy is not None and self._deadman < len(joy.buttons) and bool(joy.buttons[self._deadman])
        return by_topic

    def _command(self, joy: Joy | None, present: np.ndarray, now: float) -> np.ndarray | None:
        """Command in the mode of the robot; None while the operator's device is silent: the supervisor holds."""
        if self._mode == "leader":
            fresh = now - min(self._leader.time) <= self._timeout
            if not fresh:
                return None
            leader = np.array(self._leader.position)
            return leader if self.spec.mode != POSITION else self._follow.command(leader, present)
        if self._mode == "twist":
            if self._twist is None or now - self._twist[1] > self._timeout:
                return None
            return self.steer.twist(twist_array(self._twist[0]), present)
        if joy is None:
            return None
        axes = deadband(np.array(joy.axes, float), self._band)
        if max(self._twist_axes) >= 0:
            return self.steer.twist(pick(axes.tolist(), self._twist_axes) * np.array(self._twist_scale), present)
        return self.steer.joints(pick(axes.tolist(), self._axes) * np.array(self._scale), present)

    def _buttons(self, joy: Joy | None) -> None:
        buttons = joy.buttons if joy is not None else []
        for name, index in (
            ("estop", self._estop_button),
            ("success", self._success_button),
            ("failure", self._failure_button),
        ):
            if joy is None or not 0 <= index < len(buttons) or not self._edges[name](bool(buttons[index])):
                continue
            if name == "estop":
                self._estop.publish(Bool(data=True))
                self._estop.publish(Bool(data=False))  # a button springs back; the e-stop stays latched
            else:
                self._labels[name].call_async(Trigger.Request())

    def _send(self, value: np.ndarray | None) -> None:
        self._seq += 1
        stamp = 1e-9 * self.get_clock().now().nanoseconds
        times = [] if value is None else [1.0 / self._rate]
        rows = np.zeros((0, 0)) if value is None else value[None]
        message = trajectory(self.spec.names, stamp, self._tag, self._seq, times, rows, FIELDS[self.spec.mode])
        self._out.publish(message)

    def _on_error(self, error: Exception) -> None:
        self.get_logger().error(f"exception in the teleop loop: {error}", throttle_duration_sec=1.0)

    def _aspect(self) -> tuple[int, str, dict[str, object]]:
        if self._mode == "joy" and (self._joy is None or time.monotonic() - self._joy[1] > self._timeout):
            return WARN, "no message on joy", {"held": self._was_held}
        return OK, "holds the robot" if self._was_held else "hands off", {"held": self._was_held}
