"""What a device is: how a person's hands, real or scripted, reach the pilot, and what they are shown."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from robot_rl.arbiter import Reading
from robot_rl.types import Obs, StateDict


@dataclass(frozen=True)
class Frame:
    """A picture for a person, and when what it shows was so.

    Attributes:
        picture: (H, W, 3) uint8, or a JPEG.
        taken: [s of the steady clock].
    """

    picture: np.ndarray | bytes
    taken: float


Camera = Callable[[int], Frame | None]
"""(JPEG quality, 1 to 95) -> a picture, or None while there is no new one."""


class Teleop(ABC):
    """A device, read without blocking."""

    realtime = True
    """A person of flesh and blood: the robot keeps to real time, holds until they say go, and trials wait for them."""
    on_stop: Callable[[], None] = staticmethod(lambda: None)
    """Called at once when STOP is pressed, by devices that hear keys in a thread; the key is read later, too."""

    @abstractmethod
    def read(self, now: float, obs: Obs, policy: np.ndarray) -> Reading:
        """The newest command.

        Args:
            now: [s].
            obs: what the policy sees, without a batch axis (a scripted person looks at it; devices do not).
            policy: (A,) what the policy proposes.
        """

    def begin(self, now: float) -> None:  # noqa: B027
        """A new episode starts."""

    def prepare(self, demo: bool) -> None:  # noqa: B027
        """The next episode is a demonstration: the person drives all of it."""

    def follow(self, action: np.ndarray) -> None:  # noqa: B027
        """What (A,) the robot does while the person does not drive: a gripper that they leave alone stays so."""

    def advise(self, wanted: bool) -> None:  # noqa: B027
        """Help is wanted, or not any more; a screen shows it with the telemetry."""

    def show(  # noqa: B027
        self,
        telemetry: dict[str, Any],
        frame: Camera | None = None,
        views: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Numbers of this tick for a screen.

        Args:
            telemetry: plain values, see `human.screen`.
            frame: where its picture comes from.
            views: name -> (H, W, 3) what the policy sees.
        """

    def film(self, source: Callable[[], Mapping[str, Frame]]) -> None:  # noqa: B027
        """Cameras to be shown at their own rate, whatever the control loop does.

        Args:
            source: () -> camera -> its newest picture; asked in a thread of the screen's own.
        """

    def newest(self) -> bytes | None:
        """The large picture that its screen showed last, a JPEG; None without one."""
        return None

    def ghost(self, screen: bytes | None, views: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Pictures of a good start, to be shown over the live ones while the scene is put back.

        Args:
            screen: the large one, a JPEG, or None.
            views: name -> (H, W, 3) what the policy saw.
        """

    def state_dict(self) -> StateDict:
        """What continues it exactly, between episodes; a person of flesh and blood has nothing."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:  # noqa: B027
        """Continue."""

    def close(self) -> None:  # noqa: B027
        """Release the device."""


class TerminalTeleop(Teleop):
    """A device whose person looks at the terminal: who drives, what stands in the way and labels, when they change.

    Args:
        go: what they press for go.
        unlock: what they press to unlock.
        say: prints a line; the default leaves progress bars whole.
    """

    def __init__(self, *, go: str, unlock: str, say: Callable[[str], None] | None = None) -> None:
        self._say = say or (lambda line: tqdm.write(line, file=sys.stderr))
        self._hints = {"HOLD": f"press {go}", "STOPPED": f"unlock with {unlock}, then {go}"}
        self._told = ""

    def show(
        self,
        telemetry: dict[str, Any],
        frame: Camera | None = None,
        views: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """One line where something changed."""
        driver = telemetry["driver"]
        words = [self._hints.get(driver, ""), telemetry["problem"], telemetry["label"]]
        words += [f"help wanted: {telemetry['help']}"] if telemetry["help"] else []
        line = f"{driver}, {telemetry['phase']}" + "".join(f"; {word}" for word in words if word)
        if line != self._told:
            self._told = line
            self._say(line)
