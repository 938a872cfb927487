"""The values that a robot's own driver tells of itself, judged as its RobotSpec says."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from rclpy.node import Node

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.core.status_spec import StatusSpec
from robot_rl.real.ros.message_kinds import message_class
from robot_rl.real.ros.node_base import Health, publisher, subscribe


class RobotStatus:
    """Subscribes to the `status` topics of a RobotSpec.

    Args:
        node: that owns the subscriptions.
        spec: of the robot.
        health: gets QoS mismatches.
        estop: called with a source and whether it is pressed.

    Raises:
        ValueError: a message type that is not installed, or has no such field.
    """

    def __init__(self, node: Node, spec: RobotSpec, health: Health, estop: Callable[..., None]) -> None:
        self._spec, self._estop = spec.status, estop
        self._values: dict[str, object] = {}
        self._heard: dict[str, float] = {}
        for name, item in spec.status.items():
            kind = message_kind(name, item)
            take = partial(self._take, name, item, attrgetter(item.field))
            subscribe(node, kind, item.topic, take, _profile(item), health)

    @property
    def problems(self) -> tuple[str, ...]:
        """What stands against motion now, as sentences."""
        found, now = [], time.monotonic()
        for name, item in self._spec.items():
            if name not in self._values:
                found.append(f"status {name}: nothing heard on {item.topic}")
            elif (value := self._values[name]) not in item.good:
                found.append(f"status {name} is {value}, expected {' or '.join(map(str, item.good))}")
            elif item.timeout is not None and (silent := now - self._heard[name]) > item.timeout:
                found.append(f"status {name}: nothing on {item.topic} for {silent:.1f} s, allowed {item.timeout:g} s")
        return tuple(found)

    def _take(self, name: str, item: StatusSpec, read: Callable[[Any], Any], message: Any) -> None:
        value = plain(read(message))
        self._heard[name] = time.monotonic()
        before, self._values[name] = self._values.get(name), value
        pressed = value in item.estop
        if pressed or before in item.estop:
            self._estop(f"robot_{name}", pressed=pressed)


def tell_good(node: Node, spec: RobotSpec, health: Health) -> list[object]:
    """Publishers of a simulated robot, which tells the first good value of each status as its card says.

    Raises:
        ValueError: a message type that is not installed, or has no such field.
    """
    made: list[object] = []
    for name, item in spec.status.items():
        *parts, last = item.field.split(".")
        message = message_kind(name, item)()
        setattr(attrgetter(".".join(parts))(message) if parts else message, last, item.good[0])
        out = publisher(node, type(message), item.topic, _profile(item), health)
        out.publish(message)
        made.append(out)
        if item.timeout is not None:
            made.append(node.create_timer(item.timeout / 3.0, partial(out.publish, message)))
    return made


def _profile(item: StatusSpec) -> str:
    return "latched" if item.timeout is None else "state"


def plain(value: Any) -> Any:
    """A value of a message as YAML writes it: a byte is a number."""
    return value[0] if isinstance(value, bytes) and len(value) == 1 else value


def message_kind(name: str, item: StatusSpec) -> Any:
    """Class of the messages of a status.

    Raises:
        ValueError: the package is not installed, or the message has no such field.
    """
    kind = message_class(item.type)
    known = kind.get_fields_and_field_types()
    if item.field.partition(".")[0] not in known:
        raise ValueError(f"status.{name}.field is {item.field!r}, and {item.type} has {', '.join(known)}")
    return kind
