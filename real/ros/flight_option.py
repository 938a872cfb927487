"""The flight recorder of a node: two parameters, and the file."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

from rclpy.node import Node

from robot_rl.data.flight import FlightWriter, make_room
from robot_rl.real.core.flight import tell_card, tell_model
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.parameters import declare

LAST = 0.5
"""Seconds that a node waits for its flight at its end; the launcher waits for the node."""


def declare_flight(node: Node) -> None:
    """The parameters `flight` and `flight_gib`."""
    declare(node, "flight", "", "folder in which what this node does is recorded, empty = nowhere")
    declare(node, "flight_gib", 4.0, "the oldest flights there go when they are more [GiB]", low=0.01, high=1e5)


def open_flight(node: Node, what: str, spec: RobotSpec, model: str = "") -> FlightWriter | None:
    """Begin the recording of a node; None where none is wanted, or none can be: then it is said, and the robot works.

    Args:
        node: after `declare_flight`.
        what: `supervisor` or `policy`.
        spec: of the robot.
        model: file whose kinematics keep the robot's workspace.
    """
    folder = str(node.get_parameter("flight").value)
    if not folder:
        return None
    place = Path(folder).expanduser()
    stem = f"flight_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{re.sub(r'[^A-Za-z0-9_.-]+', '-', spec.name)}_{what}"
    path, number = place / f"{stem}.mcap", 2
    try:
        gone = make_room(place, float(node.get_parameter("flight_gib").value or 0.0) * 2**30)
        if gone:
            node.get_logger().info(f"flight recorder: {len(gone)} old flights deleted in {place} to make room")
        while path.exists():
            path, number = place / f"{stem}_{number}.mcap", number + 1
        flight = FlightWriter(path)
    except OSError as error:
        node.get_logger().error(f"no flight recorder: {error}; give flight:= a folder that can be written")
        return None
    tell_card(flight, str(node.get_parameter("robot_spec").value))
    if spec.workspace is not None and model:
        flight.put("facts", math.nan, tell_model(model, spec.workspace.ee_site))
    node.get_logger().info(f"flight recorder: {path}")
    return flight


def tell_flight(flight: FlightWriter | None) -> dict[str, object]:
    """For the diagnostics."""
    return {} if flight is None else {"flight": flight.problem or str(flight.path)}
