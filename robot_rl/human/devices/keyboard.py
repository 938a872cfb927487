"""Driving with the keys of a terminal.

Terminals report presses and repeats, never releases: a key counts as held until `hold_s` after its last report.
"""

from __future__ import annotations

import os
import re
import select
import sys
import threading
from collections.abc import Callable

import numpy as np

from robot_rl.arbiter import Press, Reading
from robot_rl.human.devices.mapping import ActionMap
from robot_rl.human.devices.teleop import TerminalTeleop
from robot_rl.real.core.clock import Clock, SteadyClock
from robot_rl.types import IOSpec, Obs
from robot_rl.types.options import Positive

KEYS: dict[str, tuple[str, float]] = {
    "w": ("x", 1.0),
    "s": ("x", -1.0),
    "a": ("y", 1.0),
    "d": ("y", -1.0),
    "r": ("z", 1.0),
    "f": ("z", -1.0),
    "q": ("yaw", 1.0),
    "e": ("yaw", -1.0),
    "j": ("roll", 1.0),
    "l": ("roll", -1.0),
    "i": ("pitch", 1.0),
    "k": ("pitch", -1.0),
    "o": ("grip", 1.0),
    "c": ("grip", -1.0),
}
PRESSES = {
    "1": "success",
    "0": "failure",
    "\x7f": "rerecord",
    "z": "undo",
    "\x1b": "estop",
    "u": "reset",
    "g": "resume",
    "h": "hold",
    "p": "pause",
    "n": "scene",
}
SEQUENCE = re.compile("\x1b[\\[O][0-9;]*[A-Za-z~]")
HELP = (
    "w/s forward/back, a/d left/right, r/f up/down, q/e turn, j/l roll, i/k pitch, o/c open/close gripper; space take "
    "over or give back; 1 success, 0 failure, z undo, backspace re-record; escape STOP, then u unlock, g go; h hold; p "
    "pause after this episode; n the scene is put back"
)


class KeyboardTeleop(TerminalTeleop):
    """Take over with the space bar, drive with letters.

    Args:
        io: interface of the policy.
        clock: source of time.
        hold_s: how long a key counts as held after its last report; above the terminal's repeat delay.
        speed: of the axes, in (0, 1].
        listen: read the terminal in a thread; False when `press` is called by somebody else.

    Raises:
        RuntimeError: standard input is no terminal.
    """

    def __init__(
        self,
        io: IOSpec,
        *,
        clock: Clock | None = None,
        hold_s: float = 0.55,
        speed: float = 0.6,
        listen: bool = True,
    ) -> None:
        super().__init__(go="g", unlock="u")
        self._clock: Clock = clock or SteadyClock()
        self._map, self._hold = ActionMap(io, dead_zone=0.0, speed=speed), hold_s
        self._held: dict[str, float] = {}
        self._presses: list[Press] = []
        self._toggles = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._restore: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        if listen:
            self._restore = _raw_terminal()
            self._say(f"keys: {HELP}")
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()

    def press(self, key: str) -> None:
        """A key was reported."""
        now = self._clock.now()
        with self._lock:
            if key == " ":
                self._toggles += 1
            elif key in PRESSES:
                self._presses.append(Press(PRESSES[key], now))
            elif key.lower() in KEYS:
                self._held[key.lower()] = now
        if PRESSES.get(key) == "estop":
            self.on_stop()

    def begin(self, now: float) -> None:
        """A new episode: nothing is held."""
        with self._lock:
            self._held.clear()

    def follow(self, action: np.ndarray) -> None:
        """The gripper is as somebody else wants it."""
        with self._lock:
            self._map.follow(action)

    def read(self, now: float, obs: Obs, policy: np.ndarray) -> Reading:
        """Keys that are held now; a terminal is always there."""
        with self._lock:
            axes: dict[str, float] = {}
            for key, since in self._held.items():
                if now - since <= self._hold:
                    axis, sign = KEYS[key]
                    axes[axis] = axes.get(axis, 0.0) + sign
            value, norm = self._map(axes)
            presses, self._presses = tuple(self._presses), []
            held = self._toggles % 2 == 1  # so that it also works where a dead-man is asked for
            return Reading(now, value, norm, held, self._toggles, presses)

    def close(self) -> None:
        """Give the terminal back."""
        self._stop.set()
        if self._restore is not None:
            self._restore()
            self._restore = None

    def _listen(self) -> None:
        handle = sys.stdin.fileno()
        while not self._stop.is_set():
            if select.select([handle], [], [], 0.1)[0]:
                # an arrow key begins as the escape key does; STOP is the escape key alone
                for key in SEQUENCE.sub("", os.read(handle, 64).decode(errors="ignore")):
                    self.press(key)


def make(io: IOSpec, expert: object = None, *, hold_s: Positive = 0.55, speed: Positive = 0.6) -> KeyboardTeleop:
    """The keyboard of this terminal; see `KeyboardTeleop`."""
    return KeyboardTeleop(io, hold_s=hold_s, speed=speed)


def _raw_terminal() -> Callable[[], None]:
    if not sys.stdin.isatty():
        raise RuntimeError("standard input is no terminal; use human=browser, or run this in a terminal")
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    tty.setcbreak(handle)
    return lambda: termios.tcsetattr(handle, termios.TCSADRAIN, before)
