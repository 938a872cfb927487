"""Parameters of nodes: typed, with ranges, and refused where they are misspelt or stand twice."""
# pyright: reportAttributeAccessIssue=false
# (fields of messages are lists in truth; rclpy's stubs say less)

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.node import Node
from rclpy.qos import QoSPolicyKind
from rclpy.qos_overriding_options import QoSOverridingOptions

from robot_rl.tables import read_table

OVERRIDE = QoSOverridingOptions(
    (QoSPolicyKind.HISTORY, QoSPolicyKind.DEPTH, QoSPolicyKind.RELIABILITY, QoSPolicyKind.DURABILITY)
)
"""Policies of a topic that parameters may set, such as `qos_overrides./joint_states.subscription.reliability`."""


@contextlib.contextmanager
def told_overrides(topic: str) -> Iterator[None]:
    """What rclpy says of a parameter `qos_overrides` that it cannot use, as an error of ours.

    Raises:
        ValueError: names the topic, the policy and the words that it knows.
    """
    try:
        yield
    except RuntimeError as error:
        if "QoS override" not in str(error):
            raise
        raise ValueError(
            f"qos_overrides of {topic}: {error}; expected reliability reliable or best_effort, durability volatile or "
            "transient_local, history keep_last or keep_all, and a whole number as depth"
        ) from error


def declare(
    node: Node,
    name: str,
    default: Any,
    description: str,
    *,
    low: float | None = None,
    high: float | None = None,
    read_only: bool = True,
) -> Any:
    """Declare a parameter and return its value.

    Args:
        node: whose parameter it is.
        name: of the parameter.
        default: also fixes the type; parameters are strictly typed, so write 20.0 for a float.
        description: one sentence for `ros2 param describe`.
        low: smallest value of a number.
        high: largest value of a number.
        read_only: whether it keeps its first value.
    """
    wanted = ParameterDescriptor(description=description, read_only=read_only)
    if low is not None or high is not None:
        if isinstance(default, float):
            top = 1e9 if high is None else float(high)
            wanted.floating_point_range = [FloatingPointRange(from_value=float(low or 0.0), to_value=top, step=0.0)]
        else:
            top = 2**31 if high is None else int(high)
            wanted.integer_range = [IntegerRange(from_value=int(low or 0), to_value=top, step=1)]
    return node.declare_parameter(name, default, wanted).value


def check_parameters(node: Node, arguments: Sequence[str]) -> None:
    """Refuse parameters that this node does not have, and files in which one stands twice: ROS is silent about both.

    Args:
        node: after it has declared all of its own.
        arguments: command line of the process.

    Raises:
        ValueError: names the parameter and the nearest that there is, or the file and the lines.
    """
    for flag, path in pairwise(arguments):
        if flag == "--params-file":
            read_table(path)
    known = set(node.get_parameters_by_prefix("")) | {"use_sim_time", "start_type_description_service"}
    for name in node._parameter_overrides:  # rclpy has no public way to see what was given and not declared
        if name not in known and not name.startswith("qos_overrides."):
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else "parameters of other nodes stand below their own names"
            raise ValueError(f"{name} is no parameter of {node.get_name()}; {hint}")
