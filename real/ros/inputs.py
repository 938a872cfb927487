"""The robot's state topics as one RobotState, with the age of every part."""

from __future__ import annotations

import functools
import time
from collections import deque
from typing import Any

import numpy as np
from rclpy.node import Node

from robot_rl.real.core.alignment import JointMerger
from robot_rl.real.core.spec import AXES, MOTION, TWIST, RobotSpec, SensorSpec
from robot_rl.real.robot import RobotState
from robot_rl.real.ros.io import JointState, WrenchStamped, joint_arrays, message_type, sensor_array
from robot_rl.real.ros.node_base import ERROR, OK, WARN, Health, subscribe
from robot_rl.real.ros.sender_clocks import Receipt, SenderClocks

JOINTS = "sensor_msgs/JointState"


class RobotInputs:
    """Subscribes to the sensors of a RobotSpec; callbacks store, the control tick reads.

    Joints are matched by name; several publishers may each send a part of them. Ages come from the time of receipt and
    the stamps, corrected for the clock offset of each sender, so hosts need no common time.

    Args:
        node: that owns the subscriptions.
        spec: of the robot; without a JointState sensor `joint_states` is read.
        health: gets the aspect `inputs` and QoS mismatches.
        future_tolerance: how far a stamp may lie ahead [s].

    Attributes:
        dropped: messages that were not usable, by reason.
        required: names of sensors without which nothing moves.
    """

    def __init__(self, node: Node, spec: RobotSpec, health: Health, *, future_tolerance: float = 0.05) -> None:
        self.spec, self._node, self._health = spec, node, health
        self._sensors = {name: s for name, s in spec.sensors.items() if "Image" not in s.type}
        self._motion = ""  # in a twist mode the sensor that tells how the robot moves
        if spec.mode == TWIST:
            kinds = {name: s.type.replace("/msg/", "/") for name, s in self._sensors.items() if s.required}
            self._motion = next(name for name, kind in kinds.items() if kind in MOTION)
        elif not any(s.type.replace("/msg/", "/") == JOINTS for s in self._sensors.values()):
            self._sensors = {"joint_states": SensorSpec("joint_states", JOINTS), **self._sensors}
        self.required = [name for name, s in self._sensors.items() if s.required]
        self.dropped: dict[str, int] = {}
        self._clocks = SenderClocks(node, future_tolerance=future_tolerance)
        self._merger = JointMerger(spec.names)
        self._effort = np.full(len(spec.joints), np.nan)
        self._index = {name: i for i, name in enumerate(spec.names)}
        self._queue: deque[tuple[JointState, Receipt]] = deque(maxlen=64)
        self._newest: dict[str, tuple[Any, Receipt]] = {}
        self._values: dict[str, tuple[float, np.ndarray]] = {}
        self._arrived: dict[str, float] = {}
        self._counts = dict.fromkeys(self._sensors, 0)
        self._heard: dict[str, float] = {}
        self._faults_seen = 0
        self._subscriptions = []
        for name, sensor in self._sensors.items():
            kind = message_type(sensor.type)
            keep = self._keep_joints if kind is JointState else self._keep
            self._subscriptions.append(
                subscribe(
                    node,
                    kind,
                    sensor.topic,
                    functools.partial(keep, name, sensor.clock),
                    "state",
                    health,
                )
            )
        health.add("inputs", self._aspect)

    def latest(self, now: float) -> RobotState | None:
        """Newest state, None until every joint has been heard; `stamp` is that of the oldest joint.

        Args:
            now: [s of the steady clock].
        """
        while self._queue:
            self._take_joints(*self._queue.popleft())
        wrench = None
        for name, (message, receipt) in list(self._newest.items()):
            known, arrival = self._values.get(name), receipt.arrival
            if known is None or known[0] != arrival:
                when = self._clocks.acquired(name, message, receipt)
                self._values[name] = known = (arrival, sensor_array(message))
                self._heard[name] = when
            if isinstance(message, WrenchStamped) and now - arrival <= self._sensors[name].timeout:
                wrench = known[1]
        if self._motion:
            return self._moving(wrench)
        oldest = float(self._merger.time.min())
        if not np.isfinite(oldest):
            return None
        effort = None if np.isnan(self._effort).any() else self._effort.copy()
        return RobotState(
            oldest,
            self._merger.position.copy(),
            self._merger.velocity.copy(),
            effort,
            wrench,
            {name: value for name, (_, value) in self._values.items()},
        )

    def _moving(self, wrench: np.ndarray | None) -> RobotState | None:
        """State of a robot without joints: velocities along its axes, and no positions worth a limit."""
        if self._motion not in self._values:
            return None
        speeds = dict(zip(AXES, self._values[self._motion][1][-6:]))  # the last six of an odometry, or all of a twist
        velocity = np.array([speeds[name] for name in self.spec.names], float)
        sensors = {name: value for name, (_, value) in self._values.items()}
        return RobotState(self._heard[self._motion], np.zeros(len(velocity)), velocity, None, wrench, sensors)

    def age(self, name: str, now: float) -> float:
        """Seconds since a sensor's newest reading was acquired; infinite before the first."""
        if name not in self._newest:
            return now - float(self._merger.time.min())
        return now - self._heard.get(name, -np.inf)

    def late(self, now: float) -> list[str]:
        """Required sensors other than joint states that are older than their timeout."""
        return [
            name
            for name in self.required
            if self._sensors[name].type.replace("/msg/", "/") != JOINTS
            and self.age(name, now) > self._sensors[name].timeout
        ]

    def missing(self) -> list[str]:
        """Joints that have never been heard."""
        if self._motion:
            return [] if self._motion in self._values else list(self.spec.names)
        return [name for name, when in zip(self.spec.names, self._merger.time) if not np.isfinite(when)]

    def clock_faults(self) -> int:
        """Stamps that could not be believed, so far."""
        return self._clocks.faults()

    def reset_clocks(self) -> None:
        """Forget all offsets: simulated time has jumped."""
        self._clocks.reset()

    # ------------------------------------------------------------ callbacks: store and return

    def _keep_joints(self, name: str, clock: str, message: JointState, info: object) -> None:
        self._counts[name] += 1
        self._arrived[name] = time.monotonic()
        self._queue.append((message, self._clocks.receipt(info, time.monotonic(), clock)))

    def _keep(self, name: str, clock: str, message: object, info: object) -> None:
        self._counts[name] += 1
        self._newest[name] = (message, self._clocks.receipt(info, time.monotonic(), clock))

    # ------------------------------------------------------------ in the control tick

    def _take_joints(self, message: JointState, receipt: Receipt) -> None:
        names, position, velocity, effort = joint_arrays(message)
        # parts of the joints may come from hosts with different clocks; the set of names tells the senders apart
        key = f"joints of {names[0]} and {len(names) - 1} more" if names else "no joints"
        when = self._clocks.acquired(key, message, receipt)
        reason = self._merger.add(when, names, position, velocity)
        if reason:
            self.dropped[reason] = self.dropped.get(reason, 0) + 1
        elif effort is not None and len(effort) == len(names):
            for name, value in zip(names, effort):
                if name in self._index:
                    self._effort[self._index[name]] = value

    def _aspect(self) -> tuple[int, str, dict[str, Any]]:
        now = time.monotonic()
        values: dict[str, object] = {}
        problems = [f"{topic}: QoS {policy} does not match" for topic, policy in self._health.mismatches.items()]
        ages = np.full(len(self.spec.names), self.age(self._motion, now)) if self._motion else now - self._merger.time
        joints = [s.timeout for s in self._sensors.values() if s.type.replace("/msg/", "/") == JOINTS]
        timeout = np.inf if self._motion else min(joints)
        silent = [name for name, age in zip(self.spec.names, ages) if age > timeout]
        if silent:
            topics = [s.topic for s in self._sensors.values() if s.type.replace("/msg/", "/") == JOINTS]
            problems.append(f"no fresh state of {', '.join(silent)} on {', '.join(topics)}")
            heard = [now - when for when in self._arrived.values()]
            if heard and min(heard) < timeout:
                problems.append(
                    f"states come, but by their stamps they are {float(np.max(ages)):.3g} s old; a robot whose stamps "
                    "are not of this host's clock needs `clock: foreign` at its sensor in the RobotSpec"
                )
        problems += [f"no fresh message on {self._sensors[name].topic}" for name in self.late(now)]
        for name, age in zip(self.spec.names, ages):
            values[f"age_{name}_ms"] = float(1e3 * age)
        for name, count in self._counts.items():
            values[f"messages_{name}"] = count
        values |= {f"dropped_{reason}": count for reason, count in self.dropped.items()}
        values["clock_faults"] = faults = self.clock_faults()
        values["velocity_estimated"] = bool(self._merger.estimated.any())
        level, message = (ERROR, "; ".join(problems)) if problems else (OK, "fresh")
        if not problems and faults > self._faults_seen:
            level, message = WARN, "a sender's clock has jumped"
        self._faults_seen = faults
        return level, message, values
