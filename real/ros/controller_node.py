"""The controller's node of a robot whose driver is ours: whoever asks learns its joints, as from ros2_control."""

from __future__ import annotations

import threading

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from robot_rl.real.core.spec import PD, PD_INTERFACES, RobotSpec
from robot_rl.real.ros.controller_check import controller_name, interface_parameter
from robot_rl.real.ros.node_base import spin


class ControllerNode:
    """A node with the parameters of a controller of the robot's mode; it answers, and does nothing.

    Args:
        robot: node of the driver, which takes the commands.
        spec: of the robot; its order is the controller's.
    """

    def __init__(self, robot: Node, spec: RobotSpec) -> None:
        space, _, name = controller_name(robot, spec).rpartition("/")
        self._over = threading.Event()
        self._executor: SingleThreadedExecutor | None = None
        if not name:  # the topic belongs to no node, e.g. joint_command
            return
        # global arguments rename the robot's node, and would rename this one too
        self._node = Node(name, namespace=space or "/", context=robot.context, use_global_arguments=False)
        self._node.declare_parameter("joints", list(spec.names))
        named = interface_parameter(spec)
        if named == "interface_name":
            self._node.declare_parameter(named, spec.mode)
        else:
            self._node.declare_parameter(named, list[str](PD_INTERFACES) if spec.mode == PD else [spec.mode])
        self._executor = SingleThreadedExecutor(context=robot.context)
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=spin, args=(self._executor, self._over), name="controller", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._over.set()
        if self._executor is not None:
            self._thread.join(1.0)
            self._executor.shutdown(0.5)
            self._node.destroy_node()
