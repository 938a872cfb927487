"""Who else speaks where only we may: publishers told apart by endpoint id, because a name can be taken twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from rclpy.node import Node

UNKNOWN = "_NODE_NAME_UNKNOWN_"
NAMELESS = "a node whose name is not known yet"
GID = 16
"""Bytes of an endpoint id; older distributions add zeros."""
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
        before = set(publishers(self._node, topic))
        made = make()
        new = set(publishers(self._node, topic)) - before
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
            for gid, name in publishers(self._node, topic).items()
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
            for gid, name in publishers(self._node, topic).items()
            if name.rpartition("/")[2] not in names and self._is_known(gid, name, now)
        )

    def _is_known(self, gid: bytes, name: str, now: float) -> bool:
        if name != NAMELESS:
            return True
        return now - self._nameless.setdefault(gid, now) > PATIENCE


class OneWriter:
    """The one publisher that a driver obeys: the only endpoint of the node of a name on its command topic.

    A name can be taken by anybody: it tells who is meant, and the endpoint tells whose a message is. Another program
    that takes the name while its owner is away is not known from it; signed topics (SROS2) would.

    Args:
        node: of the driver.
        topic: of its commands.
        writer: name of the node that may write, in the driver's namespace.

    Attributes:
        problem: who writes beside it, as a sentence; "" when nobody does.
    """

    def __init__(self, node: Node, topic: str, writer: str) -> None:
        self._node, self._topic = node, node.resolve_topic_name(topic)
        self._name = f"{node.get_namespace().rstrip('/')}/{writer}"
        self._seen: dict[bytes, str] = {}
        self._nameless: dict[bytes, float] = {}
        self._writer: bytes | None = None
        self.problem = ""

    def look(self) -> None:
        """See who writes; call it some times a second, in the callback thread."""
        now = time.monotonic()
        self._seen = publishers(self._node, self._topic)
        self._nameless = {gid: self._nameless.get(gid, now) for gid, name in self._seen.items() if name == NAMELESS}
        ours = [gid for gid, name in self._seen.items() if name == self._name]
        late = [gid for gid, since in self._nameless.items() if now - since > PATIENCE]
        others = [name for gid, name in self._seen.items() if name not in (self._name, NAMELESS) or gid in late]
        self._writer, problem = (ours[0] if len(ours) == 1 else None), ""
        if others:
            problem = (
                f"{', '.join(others)} publishes on {self._topic}, and this driver obeys {self._name} alone: end it, "
                "then reset and enable the supervisor"
            )
        elif len(ours) > 1:
            problem = (
                f"{len(ours)} publishers on {self._topic} are called {self._name}, and would drive in turn: end all "
                "but one, then reset and enable it; one that was killed is forgotten by discovery after some 20 s"
            )
        self.problem = problem  # as a whole: another thread reads it

    def takes(self, info: object) -> bool:
        """Whether a message is the writer's.

        Args:
            info: the middleware's, with the message.
        """
        sender = sender_of(info)
        if not sender:  # a middleware that does not tell: the graph alone says who writes
            return self._writer is not None and not self.problem
        if sender not in self._seen or self._seen[sender] == NAMELESS:
            self.look()
        return sender == self._writer and not self.problem


class SharedSwitch:
    """A switch on a topic that several may press: it is released when all who pressed it have let go, or are gone.

    Args:
        node: that listens.
        topic: of the switch.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._node, self._topic = node, node.resolve_topic_name(topic)
        self._holders: set[bytes] = set()

    def pressed(self, on: bool, info: object) -> bool:
        """Whether it is pressed after one of them has said so, or not; `info` is the middleware's, with the message."""
        sender = sender_of(info)
        if on:
            self._holders.add(sender)
        else:
            self._holders &= set(publishers(self._node, self._topic)) - {sender}
        return bool(self._holders)


def sender_of(info: object) -> bytes:
    """Endpoint id of whoever published a message; empty where the middleware's `info` does not tell."""
    gid = info.get("publisher_gid") if isinstance(info, dict) else None
    return bytes(gid["data"])[:GID] if gid else b""


def publishers(node: Node, topic: str) -> dict[bytes, str]:
    """Endpoint id -> full name of its node, of all publishers on a topic.

    Args:
        node: that looks.
        topic: its full name.
    """
    return {
        bytes(item.endpoint_gid)[:GID]: NAMELESS
        if UNKNOWN in item.node_name
        else f"{item.node_namespace.rstrip('/')}/{item.node_name}"
        for item in node.get_publishers_info_by_topic(topic)
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
