"""The robot's state topics as one RobotState, with the age of every part."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from math import inf, isfinite, isnan, nan

import numpy as np
from rclpy.node import Node

from robot_rl.real.core.alignment import JointMerger
from robot_rl.real.core.messages import sensor_array
from robot_rl.real.core.spec import AXES, MOTION, TWIST, RobotSpec, SensorSpec
from robot_rl.real.robot import RobotState
from robot_rl.real.ros.io import JointState, WrenchStamped, message_type
from robot_rl.real.ros.node_base import ERROR, OK, WARN, Health, subscribe
from robot_rl.real.ros.sender_clocks import SenderClocks

JOINTS = "sensor_msgs/JointState"


class RobotInputs:
    """Subscribes to the sensors of a RobotSpec; callbacks read messages as they come, the tick takes the newest.

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
            self._motion = next(name for name, s in self._sensors.items() if s.required and s.kind in MOTION)
        elif not any(s.kind == JOINTS for s in self._sensors.values()):
            self._sensors = {"joint_states": SensorSpec("joint_states", JOINTS), **self._sensors}
        self.required = [name for name, s in self._sensors.items() if s.required]
        self.dropped: dict[str, int] = {}
        self._clocks = SenderClocks(node, future_tolerance=future_tolerance)
        self._merger = JointMerger(spec.names, spec.turning)
        self._effort = [nan] * len(spec.joints)
        self._joints: RobotState | None = None  # replaced as a whole: the control thread reads it
        self._values: dict[str, np.ndarray] = {}
        self._pushed: dict[str, tuple[float, np.ndarray]] = {}  # wrenches, with the time of receipt
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
        if self._motion:
            return self._moving(self._wrench(now))
        joints = self._joints
        if joints is None or not self._values:
            return joints
        return replace(joints, wrench=self._wrench(now), sensors=dict(self._values))

    def _wrench(self, now: float) -> np.ndarray | None:
        """The last of the wrenches that are fresh."""
        pushed = list(self._pushed.items())  # callbacks add to it
        fresh = [value for name, (when, value) in pushed if now - when <= self._sensors[name].timeout]
        return fresh[-1] if fresh else None

    def _moving(self, wrench: np.ndarray | None) -> RobotState | None:
        """State of a robot without joints: velocities along its axes, and no positions worth a limit."""
        if self._motion not in self._values:
            return None
        speeds = dict(zip(AXES, self._values[self._motion][-6:]))  # the last six of an odometry, or all of a twist
        velocity, when = np.array([speeds[name] for name in self.spec.names], float), self._heard[self._motion]
        return RobotState(when, np.zeros(len(velocity)), velocity, None, wrench, dict(self._values))

    def age(self, name: str, now: float) -> float:
        """Seconds since a sensor's newest reading was acquired; infinite before the first."""
        joints = self._sensors[name].kind == JOINTS
        return now - (min(self._merger.time) if joints else self._heard.get(name, -inf))

    def late(self, now: float) -> list[str]:
        """Required sensors other than joint states that are older than their timeout."""
        return [
            name
            for name in self.required
            if self._sensors[name].kind != JOINTS and self.age(name, now) > self._sensors[name].timeout
        ]

    def missing(self) -> list[str]:
        """Joints that have never been heard."""
        if self._motion:
            return [] if self._motion in self._values else list(self.spec.names)
        return [name for name, when in zip(self.spec.names, self._merger.time) if not isfinite(when)]

    def clock_faults(self) -> int:
        """Stamps that could not be believed, so far."""
        return self._clocks.faults()

    def reset_clocks(self) -> None:
        """Forget all offsets: simulated time has jumped."""
        self._clocks.reset()

    # ------------------------------------------------------------ callbacks

    def _keep_joints(self, name: str, clock: str, message: JointState, info: object) -> None:
        self._counts[name] += 1
        self._arrived[name] = arrival = time.monotonic()
        names, effort = tuple(message.name), message.effort
        # parts of the joints may come from hosts with different clocks; the set of names tells the senders apart
        when = self._clocks.acquisition_time(names, message, self._clocks.receipt(info, arrival, clock))
        merger = self._merger
        reason = merger.add(when, names, message.position, message.velocity)
        if reason:
            self.dropped[reason] = self.dropped.get(reason, 0) + 1
            return
        if len(effort) == len(names):
            for k, i in merger.places(names) or ():
                self._effort[i] = effort[k]
        oldest = min(merger.time)
        if isfinite(oldest):
            known = None if any(map(isnan, self._effort)) else np.array(self._effort)
            self._joints = RobotState(oldest, np.array(merger.position), np.array(merger.velocity), known)

    def _keep(self, name: str, clock: str, message: object, info: object) -> None:
        self._counts[name] += 1
        arrival = time.monotonic()
        when = self._clocks.acquisition_time(name, message, self._clocks.receipt(info, arrival, clock))
        value = sensor_array(message)
        if isinstance(message, WrenchStamped):
            self._pushed[name] = arrival, value
        self._heard[name], self._values[name] = when, value

    def _aspect(self) -> tuple[int, str, dict[str, object]]:
        now = time.monotonic()
        values: dict[str, object] = {}
        problems = [f"{topic}: QoS {policy} does not match" for topic, policy in self._health.mismatches.items()]
        times = [self._heard.get(self._motion, -inf)] * len(self.spec.names) if self._motion else self._merger.time
        ages = [now - when for when in times]
        joints = [s.timeout for s in self._sensors.values() if s.kind == JOINTS]
        timeout = inf if self._motion else min(joints)
        silent = [name for name, age in zip(self.spec.names, ages) if age > timeout]
        if silent:
            problems.append(f"no fresh state of {', '.join(silent)} on {', '.join(self.spec.state_topics)}")
            heard = [now - when for when in self._arrived.values()]
            if heard and min(heard) < timeout:
                problems.append(
                    f"states come, but by their stamps they are {max(ages):.3g} s old; a robot whose stamps "
                    "are not of this host's clock needs `clock: foreign` at its sensor in the RobotSpec"
                )
        problems += [f"no fresh message on {self._sensors[name].topic}" for name in self.late(now)]
        for name, age in zip(self.spec.names, ages):
            values[f"age_{name}_ms"] = 1e3 * age
        for name, count in self._counts.items():
            values[f"messages_{name}"] = count
        values |= {f"dropped_{reason}": count for reason, count in self.dropped.items()}
        values["clock_faults"] = faults = self.clock_faults()
        values["velocity_estimated"] = any(self._merger.estimated)
        level, message = (ERROR, "; ".join(problems)) if problems else (OK, "fresh")
        if not problems and faults > self._faults_seen:
            level, message = WARN, "a sender's clock has jumped"
        self._faults_seen = faults
        return level, message, values
