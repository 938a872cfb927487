"""Who else speaks where only we may: publishers told apart by endpoint id, because a name can be taken twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from rclpy.node import Node

UNKNOWN = "_NODE_NAME_UNKNOWN_"
NAMELESS = "a node whose name is not known yet"
PATIENCE = 2.0
"""Seconds in which a publisher, which is discovered a little before its node, must have a name."""


class OwnEndpoints:
    """Publishers and services that belong to this node alone.

    Args:
        node: whose they are.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._own: dict[str, set[bytes]] = {}  # topic -> endpoint ids
        self._services: list[str] = []
        self._nameless: dict[bytes, float] = {}

    def publish(self, make: Callable[[], object], topic: str) -> Any:
        """Create a publisher with `make` and remember its endpoint; whoever else publishes on `topic` is a rival.

        Raises:
            ValueError: our endpoint could not be told from others, because they came in the same moment.
        """
        topic = self._node.resolve_topic_name(topic)
        before = set(self._publishers(topic))
        made = make()
        new = set(self._publishers(topic)) - before
        if len(new) != 1:
            raise ValueError(
                f"{len(new)} publishers came to {topic} in one moment, expected ours alone; configure again"
            )
        self._own.setdefault(topic, set()).update(new)
        return made

    def serve(self, service: Any) -> Any:
        """Remember a service of ours; a second server of its name is a rival."""
        self._services.append(self._node.resolve_service_name(service.srv_name))
        return service

    def clear(self) -> None:
        """Forget everything: the endpoints are gone."""
        self._own.clear()
        self._services.clear()

    def rivals(self) -> tuple[str, ...]:
        """Everybody else on our topics and services, in words."""
        found = [
            f"{name} on {topic}"
            for topic, own in self._own.items()
            for gid, name in self._publishers(topic).items()
            if gid not in own
        ]
        found += [f"a second server of {name}" for name in self._services if self._node.count_services(name) > 1]
        return tuple(found)

    def strangers(self, topics: Iterable[str], names: set[str]) -> tuple[str, ...]:
        """Publishers on `topics` whose node is not called one of `names`, in words."""
        now = time.monotonic()
        return tuple(
            f"{name} on {topic}"
            for topic in topics
            for gid, name in self._publishers(topic).items()
            if name.rpartition("/")[2] not in names and self._known(gid, name, now)
        )

    def _known(self, gid: bytes, name: str, now: float) -> bool:
        if name != NAMELESS:
            return True
        return now - self._nameless.setdefault(gid, now) > PATIENCE

    def _publishers(self, topic: str) -> dict[bytes, str]:
        return {
            bytes(item.endpoint_gid): NAMELESS
            if UNKNOWN in item.node_name
            else f"{item.node_namespace.rstrip('/')}/{item.node_name}"
            for item in self._node.get_publishers_info_by_topic(topic)
        }


def refuse_twin(node: Node, patience: float) -> None:
    """Watch the graph for a while: a second node of our name would have our services and our topics.

    Args:
        node: ours.
        patience: seconds that discovery is given; who comes later finds us here and refuses by itself.

    Raises:
        ValueError: there is another one.
    """
    own = (node.get_name(), node.get_namespace())
    end = time.monotonic() + patience
    while True:
        if node.get_node_names_and_namespaces().count(own) > 1:
            raise ValueError(
                f"another node is called {own[1].rstrip('/')}/{own[0]}: two of one name would drive one robot in turn. "
                "End the other one, or give this one a namespace of its own; one that was killed is forgotten by "
                "discovery after some 20 s"
            )
        if time.monotonic() >= end:
            return
        time.sleep(0.05)
