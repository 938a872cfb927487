"""Driving with a gamepad at this machine, through pygame; a gamepad at another machine goes through the browser."""

from __future__ import annotations

import math
import os
from typing import Any, Protocol

import numpy as np

from robot_rl.arbiter import Press, Reading
from robot_rl.extras import require
from robot_rl.human.devices.mapping import ActionMap
from robot_rl.human.devices.teleop import TerminalTeleop
from robot_rl.types import IOSpec, Obs
from robot_rl.types.options import Positive, Share, Whole

# standard layout (XInput): axis -> (named axis, sign), button -> meaning
STICKS = {1: ("x", -1.0), 0: ("y", -1.0), 4: ("z", -1.0), 3: ("yaw", -1.0)}
PRESSES = {0: "success", 1: "failure", 2: "rerecord", 3: "undo", 6: "estop", 7: "resume", 8: "reset", 10: "scene"}
ENABLE = 5


class Pad(Protocol):
    """The part of a pygame joystick that is used."""

    def get_numaxes(self) -> int:
        """Number of axes."""
        ...

    def get_axis(self, index: int) -> float:
        """Axis in [-1, 1]."""
        ...

    def get_numbuttons(self) -> int:
        """Number of buttons."""
        ...

    def get_button(self, index: int) -> bool:
        """Whether it is down."""
        ...

    def get_numhats(self) -> int:
        """Number of crosses."""
        ...

    def get_hat(self, index: int) -> tuple[int, int]:
        """The cross."""
        ...


class GamepadTeleop(TerminalTeleop):
    """Right shoulder button enables, sticks move, the cross opens (up) and closes (down) the gripper.

    Args:
        io: interface of the policy.
        pad: opened joystick; None opens number `index`.
        index: which gamepad.
        dead_zone: of the sticks.
        speed: factor on them.

    Raises:
        RuntimeError: there is no such gamepad.
        ImportError: pygame is not installed.
    """

    def __init__(
        self, io: IOSpec, *, pad: Pad | None = None, index: int = 0, dead_zone: float = 0.12, speed: float = 1.0
    ) -> None:
        super().__init__(go="start", unlock="the guide button")
        self._map = ActionMap(io, dead_zone=dead_zone, speed=speed)
        self._game, self._index = None, index
        if pad is None:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
            os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
            self._game = require("pygame")
            self._game.init()
            found = self._game.joystick.get_count()
            if index >= found:
                raise RuntimeError(f"gamepad {index} is not there ({found} found); plug it in, or use human=browser")
            pad = self._game.joystick.Joystick(index)
        self._pad: Any = pad
        self._down: set[int] = set()
        self._lost = False

    def follow(self, action: np.ndarray) -> None:
        """The gripper is as somebody else wants it."""
        self._map.follow(action)

    def read(self, now: float, obs: Obs, policy: np.ndarray) -> Reading:
        """Sticks and buttons; a pad that was unplugged is not connected until it is plugged in again."""
        if self._game is not None:
            self._watch()
        if self._lost:
            return Reading(-math.inf, np.zeros(len(self._map.axes), np.float32), connected=False)
        pad = self._pad
        axes = {name: sign * pad.get_axis(i) for i, (name, sign) in STICKS.items() if i < pad.get_numaxes()}
        if pad.get_numhats():  # the cross of some pads is four buttons
            axes["grip"] = float(pad.get_hat(0)[1])
        value, norm = self._map(axes)
        down = self._pressed_buttons()
        fresh, self._down = down - self._down, down
        presses = tuple(Press(PRESSES[i], now) for i in sorted(fresh) if i in PRESSES)
        return Reading(now, value, norm, enable=ENABLE in down, presses=presses)

    def _watch(self) -> None:
        """Whether the pad was unplugged, or plugged in again: a button that is down then is no press."""
        game: Any = self._game
        for event in game.event.get():
            if event.type == game.JOYDEVICEREMOVED and event.instance_id == self._pad.get_instance_id():
                self._lost = True
            elif event.type == game.JOYDEVICEADDED and self._lost and self._index < game.joystick.get_count():
                self._pad, self._lost = game.joystick.Joystick(self._index), False
                self._down = self._pressed_buttons()

    def _pressed_buttons(self) -> set[int]:
        return {i for i in range(self._pad.get_numbuttons()) if self._pad.get_button(i)}

    def close(self) -> None:
        """Release pygame."""
        if self._game is not None:
            self._game.quit()


def make(
    io: IOSpec, expert: object = None, *, index: Whole = 0, dead_zone: Share = 0.12, speed: Positive = 1.0
) -> GamepadTeleop:
    """A gamepad at this machine; see `GamepadTeleop`."""
    return GamepadTeleop(io, index=index, dead_zone=dead_zone, speed=speed)
