"""An arm of servos as a robot on topics: joint states out, the supervisor's commands in, and how its servos are."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from rclpy.node import Node
from std_msgs.msg import String

from robot_rl import card
from robot_rl.real.core.scheduler import Tick
from robot_rl.real.core.spec import POSITION, RobotSpec
from robot_rl.real.ros.controller_node import ControllerNode
from robot_rl.real.ros.endpoints import OneWriter
from robot_rl.real.ros.io import JointState, hardware_type, hardware_values, joint_state
from robot_rl.real.ros.node_base import (
    ERROR,
    OK,
    WARN,
    ControlLoop,
    Health,
    Seen,
    publisher,
    spare_garbage,
    steady_timer,
    subscribe,
)
from robot_rl.real.ros.parameters import check_parameters, declare
from robot_rl.real.servos.arm import ServoArm, ServoReading, open_bus
from robot_rl.real.servos.bus import ServoError
from robot_rl.real.servos.driver import GOOD, ServoDriver

LOOK = 0.1
"""Seconds between two looks at who writes on the command topic."""


class ServoArmNode(Node):
    """See docs/howto/so101.md for topics and parameters."""

    def __init__(self, **options: Any) -> None:
        """Read the card, open the bus, see that it is the arm of the card, begin.

        Args:
            options: of the node.

        Raises:
            ValueError: a card without servos, or a bus or servo that is not as it says.
        """
        super().__init__("servo_arm", **options)
        path = declare(self, "robot_spec", "", "path of the card")
        rate = declare(self, "rate", 100.0, "joint states per second", low=10.0, high=500.0)
        priority = declare(self, "realtime", 0, "SCHED_FIFO priority of the loop, 0 = ordinary", high=98)
        port = declare(self, "port", "", "another port than the card's")
        writer = declare(self, "writer", "safety_supervisor", "the one node that may command, in our namespace")
        check_parameters(self, sys.argv)
        if not path:
            raise ValueError("robot_spec is empty; give the path of the robot's card")
        found = card.read(path)
        self.spec = spec = RobotSpec.load(path)
        if found.servos is None:
            raise ValueError(f"{path} has no servos; robot-rl robot calibrate-arm {path} finds them")
        if spec.mode != POSITION:
            raise ValueError(f"command_mode of {path} is {spec.command_mode}; servos take positions: joint_command")
        try:
            self._bus = open_bus(found.servos, port)
            arm = ServoArm(self._bus, found.servos.motors, spec.names)
            limp = found.servos.silence == "limp"
            self._driver = ServoDriver(arm, spec.array("velocity"), timeout=spec.controller_timeout, limp=limp)
        except ServoError as error:
            raise ValueError(str(error)) from error
        self._quiet = "are let go" if limp else "hold their last goal"
        self.health = Health(self, spec.name)
        self._command: tuple[np.ndarray | None, float] = None, 0.0  # replaced as a whole: another thread reads it
        self._reading: ServoReading | None = None
        self._status = ""
        self._states = publisher(self, JointState, spec.state_topics[0], "state_out", self.health)
        self._says = publisher(self, String, "servos/status", "latched", self.health)
        self._writer = OneWriter(self, spec.controller_topic, writer)
        self._looking = steady_timer(self, LOOK, self._writer.look)
        subscribe(self, hardware_type(spec), spec.controller_topic, self._on_command, "hardware", self.health)
        self._controller = ControllerNode(self, spec)
        self.loop = ControlLoop(rate, self._tick, on_error=self._on_error, priority=int(priority))
        self.health.watch_loop(self.loop)
        self.health.add("servos", self._aspect)
        spare_garbage()  # a collection in its course would make a silence of a fault's length
        self.loop.start()

    def wind_down(self) -> None:
        """Let go or hold, as the card says."""
        self.loop.stop()
        self._controller.close()
        try:
            self._driver.close()
        except ServoError as error:
            self.get_logger().error(str(error))
        self._bus.close()

    def _on_command(self, message: object, info: object) -> None:
        value = hardware_values(self.spec, message) if self._writer.takes(info) else None
        if value is not None:
            self._command = value, time.monotonic()

    def _tick(self, tick: Tick) -> None:
        value, arrived = self._command
        told = self._driver.tick(time.monotonic(), value, arrived, stop=self._writer.problem)
        if told.reading is not None:
            self._reading = told.reading
            late = time.monotonic() - told.reading.stamp
            stamp = 1e-9 * self.get_clock().now().nanoseconds - late
            self._states.publish(
                joint_state(self.spec.names, told.reading.position, told.reading.velocity, None, stamp)
            )
        self._tell(told.status)

    def _tell(self, status: str) -> None:
        if status == self._status:
            return
        self._status = status
        self._says.publish(String(data=status))
        if status == GOOD:
            self.get_logger().info("the servos are well; the next command after an enable is followed")
        else:
            self.get_logger().error(status)

    def _on_error(self, error: Exception) -> None:
        self._tell(str(error) if isinstance(error, ServoError) else f"{type(error).__name__}: {error}")

    def _aspect(self) -> Seen:
        values: dict[str, object] = {"following": self._driver.following}
        if self._reading is not None:
            values |= {
                "celsius": self._reading.celsius.tolist(),
                "volts": self._reading.volts.tolist(),
                "load": self._reading.load.tolist(),
            }
        if self._status != GOOD:
            return ERROR, self._status, values
        if self._driver.silent:
            return WARN, f"no commands for {self.spec.controller_timeout:g} s: the servos {self._quiet}", values
        return OK, "well", values
