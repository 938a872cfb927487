"""A device somewhere else: named axes and keys that arrive as messages, such as from the browser."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

import numpy as np

from robot_rl.arbiter import LABELS, ORDERS, Press, Reading
from robot_rl.human.devices.mapping import ActionMap
from robot_rl.human.devices.teleop import Teleop
from robot_rl.real.core.clock import Clock, SteadyClock
from robot_rl.types import IOSpec, Obs

FREES = ("resume", "reset", "toggle", "scene")
"""Keys after which the robot may move."""
LATEST_S = 0.5
"""One of them that was longer on its way does nothing: a link that comes back moves nothing."""


class RemoteTeleop(Teleop):
    """Holds the newest message of a remote operator; its age is the age of the link.

    Args:
        io: interface of the policy.
        clock: source of time.
        dead_zone: of the axes.
        speed: factor on them.
    """

    def __init__(self, io: IOSpec, *, clock: Clock | None = None, dead_zone: float = 0.05, speed: float = 1.0) -> None:
        self._clock: Clock = clock or SteadyClock()
        self._map = ActionMap(io, dead_zone=dead_zone, speed=speed)
        self._lock = threading.Lock()
        self._axes: dict[str, float] = {}
        self._factor = 1.0
        self._enable, self._toggles = False, 0
        self._stamp, self._sequence = -math.inf, -1
        self._presses: list[Press] = []
        self._connected = self._left = False

    def message(
        self, sequence: int, axes: Mapping[str, float], enable: bool, factor: float = 1.0, sent: float | None = None
    ) -> bool:
        """Newest state of the device; one that is older than the last is dropped (returns False).

        Args:
            sequence: number of the message.
            axes: by name, in [-1, 1].
            enable: the dead-man is held.
            factor: in [0, 1] on the speed, for fine work.
            sent: when it left the device [s of our clock]; None: now. What was long on its way is that old.
        """
        with self._lock:
            if sequence <= self._sequence:
                return False
            self._sequence, self._axes, self._enable = sequence, dict(axes), enable
            self._factor = min(max(factor, 0.0), 1.0) if math.isfinite(factor) else 0.0
            self._stamp, self._connected = self._past(sent), True
            return True

    def press(self, kind: str, episode: int = -1, sent: float | None = None) -> None:
        """A discrete key.

        Args:
            kind: of it.
            episode: that a label is about; see `Press`.
            sent: when it went down [s of our clock]; None: now.

        Raises:
            ValueError: unknown, or a key that frees the robot and was too long on its way.
        """
        if kind not in (*LABELS, *ORDERS, "toggle"):
            raise ValueError(f"key '{kind}' is unknown, expected one of {', '.join((*LABELS, *ORDERS, 'toggle'))}")
        when = self._past(sent)
        late = self._clock.now() - when
        if kind in FREES and late > LATEST_S:
            raise ValueError(f"{kind} came {late:.1f} s late, and the robot may be elsewhere by now; press it again")
        with self._lock:
            if kind == "toggle":
                self._toggles += 1
            else:
                self._presses.append(Press(kind, when, episode))
        if kind == "estop":
            self.on_stop()

    def _past(self, sent: float | None) -> float:
        """A time that is not in the future."""
        now = self._clock.now()
        return now if sent is None or not math.isfinite(sent) else min(sent, now)

    def disconnect(self) -> None:
        """The link is gone, or somebody else sits down: one reading says so, however soon the next message comes.

        The next operator starts with a sequence of their own.
        """
        with self._lock:
            self._connected, self._enable, self._axes, self._sequence = False, False, {}, -1
            self._left = True

    def follow(self, action: np.ndarray) -> None:
        """The gripper is as somebody else wants it."""
        with self._lock:
            self._map.follow(action)

    def read(self, now: float, obs: Obs, policy: np.ndarray) -> Reading:
        """The newest message."""
        with self._lock:
            value, norm = self._map(self._axes, self._factor)
            presses, self._presses = tuple(self._presses), []
            there, self._left = self._connected and not self._left, False
            return Reading(self._stamp, value, norm, self._enable, self._toggles, presses, connected=there)
