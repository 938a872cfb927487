"""A device on ROS topics, beside the page: game pad, space mouse, twist stream or leader arm with a clutch."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import Field

from robot_rl.arbiter import LABELS, ORDERS, Clutch, Press, Reading
from robot_rl.human.devices.browser import BrowserOptions, BrowserTeleop
from robot_rl.human.devices.mapping import AXES as KNOWN
from robot_rl.human.devices.mapping import ActionMap
from robot_rl.real.core.clock import Clock
from robot_rl.types import IOSpec, Obs
from robot_rl.types.options import Number, Positive, Share, Whole

AXES: dict[str, int | None] = {"x": 1, "y": 0, "z": 4, "yaw": 3, "roll": None, "pitch": None, "grip": 7}
_LAYOUT = {"success": 0, "failure": 1, "rerecord": 2, "undo": 3, "estop": 6, "resume": 7, "reset": 8}
PRESSES: dict[str, int | None] = {**_LAYOUT, "hold": None, "pause": None, "scene": None}
HAND = (*KNOWN, "grip")
TWIST = ("x", "y", "z", "roll", "pitch", "yaw")


class RosOptions(BrowserOptions):
    """Of `human=ros`; the page stays, for pictures, labels and its own hands."""

    kind: Literal["joy", "twist", "leader"] = "joy"
    """sensor_msgs/Joy, geometry_msgs/TwistStamped or a leader arm's sensor_msgs/JointState."""
    topic: str = ""
    """Of the device; "" takes joy, robot_rl/teleop/twist or leader/joint_states."""
    namespace: str = ""
    """Of its topics."""
    axes: dict[str, Whole | None] = Field(default_factory=lambda: dict(AXES))
    """joy: axis of the hand -> number in the message, null: none; the default is joy_node's with an XInput pad."""
    invert: tuple[str, ...] = ()
    """joy, twist: axes of the hand that go the other way."""
    buttons: dict[str, Whole | None] = Field(default_factory=lambda: dict(PRESSES))
    """joy: key -> number of its button, null: none; the dead-man's button is no key."""
    enable_button: Whole | None = 5
    """joy: the dead-man; null, and every other device: the topic robot_rl/deadman (std_msgs/Bool)."""
    dead_zone: Share = 0.05
    """joy, twist: deflections up to this are zero."""
    linear: Positive = 0.1
    """twist: full deflection, m/s."""
    angular: Positive = 0.5
    """twist: full deflection, rad/s."""
    follow: Positive = 1.0
    """leader: radians of the robot for one of the leader."""
    grip: tuple[str, Number, Number] = ("gripper", -0.1745, 1.7453)
    """leader: joint of its handle, and where that is closed and open [rad]; of an SO-101 if left out."""
    silence_ms: Positive = 250.0
    """After so long without a message the device is lost."""


class Listener(Protocol):
    """What hears the topics; see `robot_rl.real.ros.hands.RosHands`."""

    def close(self) -> None:
        """End."""
        ...


Listen = Callable[..., Listener]
"""(device, heard, topic=, namespace=) -> listener, which calls heard(kind, values) in a thread of its own."""


class RosTeleop(BrowserTeleop):
    """A device on ROS topics and the page together: whoever holds the dead-man drives, keys count from both.

    A device that falls silent while it drives is lost, whatever the page says: the robot holds.

    Args:
        options: of both.
        io: interface of the policy.
        listen: opens the topics.
        clock: of the control loop.
        announce: print the page's address.

    Raises:
        ValueError: an axis or key that there is not, or a leader arm for actions that are no moves of joints.
    """

    def __init__(
        self, options: RosOptions, io: IOSpec, *, listen: Listen, clock: Clock | None = None, announce: bool = True
    ) -> None:
        for what, given, known in (("axes", options.axes, HAND), ("buttons", options.buttons, (*LABELS, *ORDERS))):
            wrong = sorted(set(given) - set(known))
            if wrong:
                raise ValueError(f"human.{what} names {', '.join(wrong)}; expected some of {', '.join(known)}")
        self._o, self._axis = options, ActionMap(io, dead_zone=options.dead_zone, speed=options.speed)
        self._leader = LeaderMoves(io, options.follow, options.grip) if options.kind == "leader" else None
        self._ros = threading.Lock()
        self._heard_at, self._held_at = -math.inf, -math.inf
        self._named: dict[str, float] = {}
        self._held, self._ros_toggles = False, 0
        self._down: set[str] = set()
        self._keys: list[Press] = []
        super().__init__(options, io, clock=clock, announce=announce)
        self._listener = listen(options.kind, self._hear, topic=options.topic, namespace=options.namespace)

    def read(self, now: float, obs: Obs, policy: np.ndarray) -> Reading:
        """The page's reading while its dead-man is held or while the device is silent, else the device's."""
        page = super().read(now, obs, policy)
        with self._ros:
            keys, self._keys = tuple(self._keys), []
            fresh = now - self._heard_at <= 1e-3 * self._o.silence_ms
            by_topic = self._o.kind != "joy" or self._o.enable_button is None
            if by_topic and now - self._held_at > 1e-3 * self._o.silence_ms:
                fresh = fresh and not self._held
            both = replace(page, presses=page.presses + keys, toggles=page.toggles + self._ros_toggles)
            if not fresh:
                lost, self._held, self._down = self._held, False, set()
                if self._leader is not None:
                    self._leader.release()
                return replace(both, connected=page.connected and not lost)
            if page.enable and page.connected:
                return both
            if self._leader is not None:
                value = self._leader.value(self._named, self._held, now)
                norm = float(np.abs(value[: self._leader.moves]).max())  # a handle that is held open moves nothing
            else:
                value, norm = self._axis(self._named)
            stamp = max(self._heard_at, page.stamp) if not self._held else self._heard_at
            return replace(both, stamp=stamp, value=value, norm=norm, enable=self._held, connected=True)

    def follow(self, action: np.ndarray) -> None:
        """The gripper is as somebody else wants it, for both hands."""
        super().follow(action)
        with self._ros:
            self._axis.follow(action)

    def close(self) -> None:
        """Release the topics, and stop serving."""
        self._listener.close()
        super().close()

    def _hear(self, kind: str, values: Any) -> None:
        """What came, in the listener's thread."""
        now, stop = self._clock.now(), False
        with self._ros:
            if kind == "deadman":
                if self._o.kind != "joy" or self._o.enable_button is None:
                    self._held_at = now
                    self._hold(values)
                return
            self._heard_at = now
            if kind == "joy":
                axes, buttons = values
                self._named = {name: axes[i] for name, i in self._o.axes.items() if i is not None and i < len(axes)}
                enable, keys = self._o.enable_button, self._o.buttons.items()  # the dead-man is no key
                known = {name: i for name, i in keys if i is not None and i != enable}
                down = {name for name, i in known.items() if i < len(buttons) and buttons[i]}
                fresh, self._down = down - self._down, down
                self._keys += [Press(name, now) for name in sorted(fresh)]
                stop = "estop" in fresh
                if enable is not None:
                    self._hold(enable < len(buttons) and bool(buttons[enable]))
            elif kind == "twist":
                full = (self._o.linear,) * 3 + (self._o.angular,) * 3
                self._named = {name: float(v) / most for name, v, most in zip(TWIST, values, full)}
            else:
                self._named = dict(values)
            if kind != "leader":
                self._named |= {name: -self._named[name] for name in self._o.invert if name in self._named}
        if stop:
            self.on_stop()

    def _hold(self, held: bool) -> None:
        self._ros_toggles += held and not self._held
        self._held = held


class LeaderMoves:
    """A leader arm's moves as actions that move joints: gripped, the robot follows; let go, the leader may be put back.

    What could not be followed within a step, because it was faster than an action may be, comes in the next ones.

    Args:
        io: interface of the policy; its actions are `<joint>_delta` or `<joint>_velocity`, and perhaps
            `gripper_opening` as the last.
        follow: radians of the robot for one of the leader.
        grip: joint of the leader's handle, where it is closed and where open [rad].

    Raises:
        ValueError: other actions, or a handle without a range.

    Attributes:
        moves: the first of the actions, which are moves.
    """

    def __init__(self, io: IOSpec, follow: float, grip: tuple[str, float, float] = ("gripper", 0.0, 1.0)) -> None:
        self._grips = io.action_names[-1] == "gripper_opening"
        if grip[1] == grip[2]:
            raise ValueError(f"human.grip says that {grip[0]} is closed and open at {grip[1]:g}; give both ends")
        (self._handle, self._closed, self._opened), self._opening = grip, 1.0
        kinds = [name.rpartition("_") for name in io.action_names[: len(io.action_names) - self._grips]]
        self.moves = len(kinds)
        wrong = [name for name, (_, _, kind) in zip(io.action_names, kinds) if kind not in ("delta", "velocity")]
        if wrong:
            raise ValueError(
                f"a leader arm moves joints, and the action {wrong[0]} does not; expected <joint>_delta or "
                "<joint>_velocity: env.world.action=joint in simulation, action: {mapping: delta} in the robot's file, "
                "or human.kind=joy"
            )
        seconds = [1.0 if kind == "delta" else 1.0 / io.control_hz for _, _, kind in kinds]
        self._joints = [joint for joint, _, _ in kinds]
        self._most = np.array(io.bounds[1][: self.moves], float) * seconds  # [rad] of one step
        self._follow = follow
        self._clutch, self._gripped = Clutch(), False
        self._done = np.zeros(len(kinds))
        self._told = False

    def release(self) -> None:
        """Let go: the next grip begins where both are then."""
        self._gripped = False

    def value(self, leader: Mapping[str, float], held: bool, now: float) -> np.ndarray:
        """(A,) action of this tick.

        Args:
            leader: joint -> position [rad].
            held: the clutch is gripped.
            now: [s].
        """
        still = self._with_grip(np.zeros(self.moves))
        missing = [joint for joint in (*self._joints, *[self._handle] * self._grips) if joint not in leader]
        if missing and not self._told:
            self._told = True
            sys.stderr.write(f"\nthe leader arm says nothing of {', '.join(missing)}; its joints are {[*leader]}\n")
        if not held or missing:
            self.release()
            return still
        place = self._follow * np.array([leader[joint] for joint in self._joints])
        handle = leader[self._handle] if self._grips else 0.0
        if not np.isfinite([*place, handle]).all():
            self.release()
            return still
        if self._grips:
            share = (handle - self._closed) / (self._opened - self._closed)
            self._opening = float(np.clip(2.0 * share - 1.0, -1.0, 1.0))
        if not self._gripped:
            self._gripped, self._done = True, np.zeros(len(place))
            self._clutch.engage(place, self._done, now)
        value = np.clip((self._clutch.target(place, now) - self._done) / self._most, -1.0, 1.0)
        self._done = self._done + value * self._most
        return self._with_grip(value)

    def _with_grip(self, value: np.ndarray) -> np.ndarray:
        return np.array([*value, *[self._opening] * self._grips], np.float32)
