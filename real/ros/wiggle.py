"""Small motions before the first real one: does each joint move that is told to, which way, and how late.

Everything goes through the supervisor, as the command of a person who holds the dead-man's switch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import Log
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from std_msgs.msg import Bool
from std_srvs.srv import SetBool

from robot_rl.real.core.messages import joint_arrays
from robot_rl.real.core.priority import lift
from robot_rl.real.core.spec import FIELDS, PD, VELOCITY, RobotSpec
from robot_rl.real.ros.controller_check import controller_name
from robot_rl.real.ros.io import JointState, JointTrajectory, qos, read_executed, trajectory

AMPLITUDE, SECONDS, RATE = 0.01, 1.2, 50.0
"""Of one joint's way out and back [rad, s], and commands per second; at most 0.026 rad/s fast."""
LEG = 0.05
"""Amplitude of legs, which hang and are soft: 0.13 rad/s."""
SPINS = "doctor-spin"
"""Name of the thread that runs the callbacks."""
SEEN = 0.3
"""Share of the amplitude from which a joint has moved."""
REST = 0.8


@dataclass
class Trial:
    """What was found: `lines` to read, `problems` to mend before the first motion, `dead_time` per joint [s]."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    dead_time: dict[str, float] = field(default_factory=dict)


class Wiggle:
    """Moves each joint of a robot by 0.01 rad and back, and watches all of them.

    Legs hang in their harness, feet free: enabling brings them home, and from there each joint moves by 0.05 rad.

    Args:
        node: whose callbacks another thread runs.
        spec: of the robot; its mode must be position, velocity or pd.

    Raises:
        ValueError: an effort or twist mode, in which a way of 0.01 rad cannot be commanded.
    """

    def __init__(self, node: Node, spec: RobotSpec) -> None:
        if not spec.has_positions and spec.mode != PD:
            raise ValueError(f"wiggle=true moves joints by positions or velocities; {spec.command_mode} has neither")
        self._node, self._spec = node, spec
        self._amplitude = LEG if spec.mode == PD else AMPLITUDE
        self._rows: list[tuple[float, np.ndarray]] = []
        self._place = np.full(len(spec.joints), np.nan)
        self._index = {name: i for i, name in enumerate(spec.names)}
        self._wanted = np.zeros(len(spec.joints)), -np.inf
        self._over = threading.Event()
        self._seq, self._tag = 0, f"doctor:{time.time_ns()}"
        for topic in set(spec.state_topics):
            node.create_subscription(JointState, topic, self._take, qos("state"))
        # what the supervisor made of it, whose own delay is not the robot's
        self._sent: list[tuple[float, np.ndarray]] = []
        node.create_subscription(JointTrajectory, "robot_rl/executed", self._on_executed, qos("executed"))
        self._out = node.create_publisher(JointTrajectory, "robot_rl/command/teleop", qos("command"))
        self._held = node.create_publisher(Bool, "robot_rl/takeover", qos("takeover"))
        self._enable = node.create_client(SetBool, "safety_supervisor/enable")

    def run(self) -> Trial:
        """Enable, move, disable; in a thread of its own, ahead of ordinary ones where the system allows it."""
        lift(30, (SPINS,))
        with ThreadPoolExecutor(1, "wiggle", lift, (30,)) as alone:
            going = alone.submit(self._run)
            try:
                return going.result()
            except BaseException:  # Ctrl-C: the thread would go on with the joints that are left
                self._over.set()
                raise

    def _run(self) -> Trial:
        trial = Trial()
        if not _until(lambda: bool(self._rows) and self._out.get_subscription_count() > 0, 5.0):
            trial.problems.append("wiggle: no complete joint states, or no supervisor that listens; nothing was moved")
            return trial
        refused = self._ask(True)
        if refused:
            trial.problems.append(f"wiggle: not enabled, nothing was moved: {refused}")
            return trial
        if self._spec.legs is not None:
            self._over.wait(self._spec.legs.stand_seconds + 0.5)
        speaks = threading.Thread(target=self._speak, name="wiggle", daemon=True)
        speaks.start()
        try:
            lower, upper = self._spec.bounds()
            for i, name in enumerate(self._spec.names):
                del self._rows[:-1], self._sent[:-1]  # of the joints before; the next judgement shall not take long
                begin, far = self._rows[-1][1], self._amplitude
                way = far if begin[i] + far <= upper[i] else -far
                if begin[i] + way < lower[i]:
                    trial.problems.append(f"wiggle: {name} stands at {begin[i]:.3f} rad, outside its limits")
                    continue
                told = self._move(i, way, begin)
                if self._over.is_set():  # a person ends it
                    break
                seen = np.array([(when, *(place - begin)) for when, place in list(self._rows)])
                found = judge(self._spec, i, way, seen, told)
                trial.lines += found.lines
                trial.problems += found.problems
                trial.dead_time |= found.dead_time
                if trial.problems:  # what comes next would be as wrong
                    break
        finally:
            self._over.set()
            speaks.join(1.0)
            self._held.publish(Bool(data=False))
            self._ask(False)
        return trial

    def _speak(self) -> None:
        """The person's hand on the switch and the newest command, without a gap while a joint is judged.

        Who lets go of legs for a moment has let them down; a hand that moves nothing for a second lets go all the same.
        """
        lift(30)
        while not self._over.wait(1.0 / RATE):
            value, when = self._wanted
            if time.monotonic() - when > 1.0:
                continue
            self._seq += 1
            stamp = 1e-9 * self._node.get_clock().now().nanoseconds
            self._held.publish(Bool(data=True))
            self._out.publish(
                trajectory(
                    self._spec.names, stamp, self._tag, self._seq, [1.0 / RATE], value[None], FIELDS[self._spec.mode]
                )
            )

    def _take(self, message: JointState) -> None:
        names, position, _, _ = joint_arrays(message)
        for name, value in zip(names, position):
            if name in self._index:
                self._place[self._index[name]] = value
        if np.isfinite(self._place).all():
            self._rows.append((time.monotonic(), self._place.copy()))

    def _on_executed(self, message: JointTrajectory) -> None:
        item, now = read_executed(message), time.monotonic()
        if self._spec.mode != VELOCITY:
            self._sent.append((now, item.value))
        else:
            before, way = self._sent[-1] if self._sent else (now, np.zeros(len(item.value)))
            self._sent.append((now, way + item.value * (now - before)))

    def _ask(self, on: bool) -> str:
        if not self._enable.wait_for_service(5.0):
            return "no supervisor offers safety_supervisor/enable"
        future = self._enable.call_async(SetBool.Request(data=on))
        if not _until(future.done, 5.0):
            return "the supervisor does not answer"
        answer: Any = future.result()
        return "" if answer.success else answer.message

    def _move(self, joint: int, way: float, begin: np.ndarray) -> np.ndarray:
        """Way out and back of one joint, then a rest; (n, 2) when [s] and where to [rad] the supervisor sent it.

        n is 0 where the supervisor has sent nothing.
        """
        since, lead = time.monotonic(), 0.3  # the person takes over first, at rest
        while not self._over.is_set() and (t := time.monotonic() - since - lead) < SECONDS + REST:
            phase = 2.0 * np.pi * min(max(t, 0.0), SECONDS) / SECONDS
            stand = np.array(self._spec.home) if self._spec.mode == PD else begin  # legs sag below their targets
            value = np.zeros(len(begin)) if self._spec.mode == VELOCITY else stand.copy()
            if self._spec.mode != VELOCITY:
                value[joint] += way * 0.5 * (1.0 - np.cos(phase))
            else:
                value[joint] = way * np.pi / SECONDS * np.sin(phase)
            self._wanted = value, time.monotonic()
            time.sleep(0.5 / RATE)
        told = np.array([(when, value[joint]) for when, value in list(self._sent) if when >= since]).reshape(-1, 2)
        told[:, 1] -= told[:1, 1]
        return told


def judge(spec: RobotSpec, joint: int, way: float, seen: np.ndarray, told: np.ndarray) -> Trial:
    """What one joint's way out and back has shown.

    Args:
        spec: of the robot.
        joint: that was told to move.
        way: of it [rad], with its sign.
        seen: (m, 1 + J) when [s], and how far every joint was from where it stood [rad].
        told: (n, 2) when [s], and how far from there the supervisor sent the joint [rad].
    """
    trial, names, least = Trial(), spec.names, SEEN * abs(way)
    seen = seen[seen[:, 0] >= told[0, 0]] if len(told) else seen[:0]
    if not len(seen):
        silent = "joint states came no more" if len(told) else "the supervisor sent nothing"
        trial.problems.append(f"wiggle: told to move {names[joint]}, {silent}; look for a fault in its diagnostics")
        return trial
    times, moved = seen[:, 0], seen[:, 1:]
    peak = np.abs(moved).max(0)
    others = [names[i] for i in np.flatnonzero(peak > least) if i != joint]
    signed = float(moved[np.argmax(np.abs(moved[:, joint])), joint])
    if peak[joint] < least and others:
        trial.problems.append(
            f"wiggle: told to move {names[joint]}, the robot moved {', '.join(others)}: the order or the names "
            "of the joints differ between the controller, the joint states and the RobotSpec"
        )
    elif peak[joint] < least and (sent := float(np.abs(told[:, 1]).max())) < least:
        trial.problems.append(
            f"wiggle: told to move {names[joint]} by {way:g} rad, the supervisor sent it at most {sent:.4f}: it "
            "braked, or heard of the motion too late; look for a fault in its diagnostics, and try again where the "
            "machine has less to do"
        )
    elif peak[joint] < least:
        trial.problems.append(
            f"wiggle: told to move {names[joint]} by {way:g} rad, it moved by {signed:.4f}: not driven, braked, or "
            "its states do not come from this robot"
        )
    elif signed * way < 0.0:
        trial.problems.append(f"wiggle: {names[joint]} moves the other way: the sign of commands or states is wrong")
    elif others:
        trial.problems.append(f"wiggle: with {names[joint]} {', '.join(others)} moved too")
    else:
        late = trial.dead_time[names[joint]] = _lag(times, moved[:, joint], told)
        trial.lines.append(f"  {names[joint]}: moved by {signed:+.4f} rad, {1e3 * late:.0f} ms late")
    return trial


def _lag(times: np.ndarray, moved: np.ndarray, told: np.ndarray) -> float:
    """Delay [s] at which what was told, times any gain, fits what was measured best."""
    best, found = np.inf, 0.0
    for lag in np.arange(0.0, 0.5, 0.005):
        late = np.interp(times - lag, told[:, 0], told[:, 1])
        gain = float(late @ moved) / max(float(late @ late), 1e-12)
        error = float(np.square(moved - gain * late).sum())
        if error < best:
            best, found = error, float(lag)
    return found


def try_timeout(node: Node, spec: RobotSpec) -> Trial:
    """Whether the controller says that commands have stopped: the supervisor is silent for the declared time, at rest.

    The supervisor is deactivated for it, and activated again.
    """
    trial, name = Trial(), controller_name(node, spec)
    if spec.controller_timeout == 0.0:
        trial.lines.append(
            "  controller_timeout is 0: if the supervisor dies, the controller goes on with its last command"
        )
        return trial
    heard: list[tuple[float, str]] = []
    # without a controller's own topic, the driver is whoever listens to the commands
    listeners = [info.node_name for info in node.get_subscriptions_info_by_topic(spec.controller_topic)]
    drivers = tuple([name.rpartition("/")[2]] if name.strip("/") else listeners)
    name = name if name.strip("/") else ", ".join(drivers) or "the driver"

    def diagnostics(message: DiagnosticArray) -> None:
        told = [s.message for s in message.status if s.level[0] > 0 and any(short in s.name for short in drivers)]
        heard.extend((time.monotonic(), text) for text in told)

    def log(message: Log) -> None:
        if message.name.replace(".", "/").endswith(drivers) and message.level >= 30:  # WARN
            heard.append((time.monotonic(), message.msg))

    node.create_subscription(DiagnosticArray, "/diagnostics", diagnostics, 50)
    node.create_subscription(Log, "/rosout", log, qos_profile_sensor_data)
    client = node.create_client(ChangeState, "safety_supervisor/change_state")

    def change(transition: int) -> bool:
        future = client.call_async(ChangeState.Request(transition=Transition(id=transition)))
        answer = future.result() if _until(future.done, 5.0) else None
        return answer is not None and answer.success

    if not client.wait_for_service(5.0) or not change(Transition.TRANSITION_DEACTIVATE):
        trial.problems.append("timeout: the supervisor could not be silenced; is it active?")
        return trial
    try:
        begin = time.monotonic()
        time.sleep(spec.controller_timeout + 1.0)
        said = [(when - begin, text) for when, text in heard if when >= begin]
    finally:
        back = _until(lambda: change(Transition.TRANSITION_ACTIVATE), 5.0)
    if not back:
        trial.problems.append("timeout: the supervisor did not become active again; start it anew")
    if said:
        trial.lines.append(f"  {name} says after {said[0][0]:.2f} s without commands: {said[0][1]}")
    else:
        trial.problems.append(
            f"timeout: the RobotSpec says controller_timeout {spec.controller_timeout:g}, but {name} says nothing (no "
            f"diagnostics, no warning) when commands stop for {spec.controller_timeout + 1.0:g} s: see to it that it "
            "stops the robot then; docs/driver.md says what a driver must do"
        )
    return trial


def _until(condition: Callable[[], bool], limit: float) -> bool:
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
