"""What the robot's own controller says of itself: an array without names moves the joints that the controller means."""

from __future__ import annotations

import time
from typing import Any

from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from robot_rl.real.core.spec import PD, PD_INTERFACES, RobotSpec

ANSWER = 2.0
"""Seconds after which a question is asked again."""


def controller_name(node: Node, spec: RobotSpec) -> str:
    """Full name of the controller's node: that of the RobotSpec, or the one below which its topic lies."""
    if spec.controller:
        return node.resolve_topic_name(spec.controller)
    return node.resolve_topic_name(spec.controller_topic).rpartition("/")[0]


def interface_parameter(spec: RobotSpec) -> str:
    """Parameter in which a controller of this mode tells what it takes."""
    return {"jtc": "command_interfaces", "pd": "interface_names"}.get(spec.command_mode, "interface_name")


def judge(spec: RobotSpec, name: str, joints: list[str], interfaces: list[str]) -> str:
    """What is wrong with a controller for this robot, "" when it fits.

    Args:
        spec: of the robot.
        name: of the controller.
        joints: its parameter `joints`; [] = it has none.
        interfaces: its parameter `interface_name`, `interface_names` or `command_interfaces`; [] = it has none.
    """
    indexed = spec.command_mode.startswith("forward") or spec.mode == PD
    if not joints:
        return f"{name} does not tell its joints; {REMEDY}" if indexed else ""
    if indexed and joints != list(spec.names):
        return (
            f"{name} reads arrays as {', '.join(joints)}, the RobotSpec sends {', '.join(spec.names)}: other joints "
            "would move. Put the joints of the RobotSpec in the controller's order, or use a mode with names (jtc)"
        )
    absent = [joint for joint in spec.names if joint not in joints]
    if absent:
        return f"{name} drives {', '.join(joints)}, but not {', '.join(absent)} of the RobotSpec"
    if spec.mode == PD:
        wrong = interfaces != list(PD_INTERFACES)
        told = f"{name} takes {', '.join(interfaces) or 'nobody knows what'} of each joint"
        return f"{told}, the RobotSpec's pd sends {', '.join(PD_INTERFACES)}" if wrong else ""
    if interfaces and spec.mode not in interfaces:
        return f"{name} takes {', '.join(interfaces)}, the RobotSpec's {spec.command_mode} sends {spec.mode}"
    return ""


REMEDY = (
    "give its node as `controller` in the RobotSpec, use a mode with names (jtc), or, when the order has been checked "
    "by hand, start the supervisor with allow_unread_controller:=true"
)


class ControllerCheck:
    """Asks the controller for its joints and interface, and asks again when another one listens.

    Args:
        node: of the supervisor.
        spec: of the robot.

    Attributes:
        problem: what stands against commands, "" when the controller fits.
    """

    def __init__(self, node: Node, spec: RobotSpec) -> None:
        self._node, self._spec = node, spec
        self._topic = node.resolve_topic_name(spec.controller_topic)
        self._name = controller_name(node, spec)
        kind = interface_parameter(spec)
        self._wanted = ("joints", kind)
        self._indexed = spec.command_mode.startswith("forward") or spec.mode == PD
        self.client = node.create_client(GetParameters, f"{self._name}/get_parameters") if self._name else None
        self._listeners: set[bytes] = set()  # when it was read
        self._asked: list[Any] = []
        self._asked_at = -float("inf")
        self._read = False
        self.problem = ""
        self._forget()

    def refuse(self, patience: float) -> None:
        """Ask now, in a node of our own: callbacks of the supervisor's do not run while it is configured.

        Raises:
            ValueError: the controller answers, and does not fit.
        """
        if not self._name:
            return
        asker = Node(
            f"{self._node.get_name()}_asks", context=self._node.context, use_global_arguments=False, enable_rosout=False
        )
        executor = SingleThreadedExecutor(context=self._node.context)
        executor.add_node(asker)
        try:
            client = asker.create_client(GetParameters, f"{self._name}/get_parameters")
            if not client.wait_for_service(patience):
                return
            futures = [client.call_async(GetParameters.Request(names=[name])) for name in self._wanted]
            for future in futures:
                executor.spin_until_future_complete(future, ANSWER)
            if all(future.done() for future in futures):
                problem = judge(self._spec, self._name, *(_strings(future.result()) for future in futures))
                if problem and "does not tell" not in problem:
                    raise ValueError(problem)
        finally:
            executor.shutdown(1.0)
            asker.destroy_node()

    def look(self) -> None:
        """Ask, or take the answer; call a few times a second in the callback thread."""
        if self.client is None:
            return
        now = time.monotonic()
        listeners = self._endpoints()
        if self._read and self._listeners != listeners:  # a new one may be known before the old one is known to be gone
            self._forget()
        if self._asked and all(future.done() for future in self._asked):
            answers = [_strings(future.result()) for future in self._asked]
            self._asked, self._read, self._listeners = [], True, listeners
            self.problem = judge(self._spec, self._name, *answers)
        elif self._asked and now - self._asked_at > ANSWER:
            for future in self._asked:
                self.client.remove_pending_request(future)
            self._asked = []
        elif not self._asked and not self._read and listeners and self.client.service_is_ready():
            self._asked_at = now
            self._asked = [self.client.call_async(GetParameters.Request(names=[name])) for name in self._wanted]

    def _endpoints(self) -> set[bytes]:
        """With which the controller's node listens; of a topic on which nobody has its name yet all."""
        found = self._node.get_subscriptions_info_by_topic(self._topic)
        named = [item for item in found if f"{item.node_namespace.rstrip('/')}/{item.node_name}" == self._name]
        return {bytes(item.endpoint_gid) for item in named or found}

    def _forget(self) -> None:
        self._read, self._listeners = False, set()
        self.problem = f"the joint order of {self._name or self._topic} is not known; {REMEDY}" if self._indexed else ""


def _strings(answer: Any) -> list[str]:
    values: list[ParameterValue] = list(answer.values) if answer is not None else []
    if not values:  # rclcpp answers nothing at all when a name is not declared
        return []
    value = values[0]
    if value.type == ParameterType.PARAMETER_STRING:
        return [value.string_value]
    return list(value.string_array_value)
