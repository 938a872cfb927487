"""When a message's content was acquired, on our clock: absolutely for senders of this host, estimated for others."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
from rclpy.node import Node

from robot_rl.real.core.alignment import SimulatedStamps, SourceClock
from robot_rl.real.ros.io import seconds
from robot_rl.real.ros.message_kinds import has_header

FASTDDS = "rmw_fastrtps"
HOST = 4
"""First bytes of an endpoint id of Fast DDS: vendor and host; other middlewares do not tell the host."""


class Receipt(NamedTuple):
    """What is known about a message when it comes.

    Args:
        arrival: time of receipt on our steady clock [s].
        told: simulated time then [s], 0 without.
        sender: endpoint of the publisher, "" where the middleware does not tell.
        offset: our steady clock minus the sender's [s] when both are of one host, else nan.
    """

    arrival: float
    told: float
    sender: str
    offset: float


class SenderClocks:
    """Ages of the messages of many senders.

    Args:
        node: that hears them.
        future_tolerance: how far a stamp may lie ahead [s].
    """

    def __init__(self, node: Node, *, future_tolerance: float = 0.05) -> None:
        self._node, self._tolerance = node, future_tolerance
        self._simulated = bool(node.get_parameter("use_sim_time").value)
        own = (node.get_name(), node.get_namespace())
        ends = node.get_publishers_info_by_topic("/parameter_events")  # every node has one
        mine = [item for item in ends if (item.node_name, item.node_namespace) == own]
        self._host = bytes(mine[0].endpoint_gid)[:HOST].hex() if mine else "unknown"
        self._clocks: dict[Hashable, SourceClock] = {}
        self._stamps: dict[Hashable, SimulatedStamps] = {}

    def receipt(self, info: object, arrival: float, clock: str = "auto") -> Receipt:
        """Note a message in the callback.

        Args:
            info: the middleware's.
            arrival: time of receipt on our steady clock [s].
            clock: `auto`, `common` or `foreign`, see `SensorSpec`.
        """
        told = 1e-9 * self._node.get_clock().now().nanoseconds if self._simulated else 0.0
        gid = info.get("publisher_gid") if isinstance(info, dict) else None
        sender = bytes(gid["data"]).hex() if gid else ""
        local = bool(gid) and FASTDDS in str(gid["implementation_identifier"]) and sender.startswith(self._host)
        known = clock == "common" or (clock == "auto" and local)
        return Receipt(arrival, told, sender, time.monotonic() - time.time() if known else np.nan)

    def acquisition_time(self, key: Hashable, message: Any, receipt: Receipt) -> float:
        """Time of acquisition on our steady clock [s]; that of receipt for what has no stamp.

        Args:
            key: tells senders apart where the middleware does not.
            message: with or without a header.
            receipt: of it.
        """
        key, offset = receipt.sender or key, receipt.offset
        stamp = seconds(message.header.stamp) if has_header(type(message)) else 0.0
        if self._simulated:
            stamp = self._stamps.setdefault(key, SimulatedStamps()).steady(receipt.arrival, receipt.told, stamp)
            offset = 0.0
        if key not in self._clocks:
            if len(self._clocks) >= 64:  # senders come and go
                self.forget()
            self._clocks[key] = SourceClock(future_tolerance=self._tolerance)
        return self._clocks[key].arrive(receipt.arrival, stamp, known=offset).time

    def faults(self) -> int:
        """Stamps that could not be believed, so far."""
        return sum(clock.faults for clock in self._clocks.values())

    def reset(self) -> None:
        """Forget all offsets: simulated time has jumped."""
        for clock in self._clocks.values():
            clock.reset()

    def forget(self) -> None:
        """Forget all senders."""
        self._clocks.clear()
        self._stamps.clear()
