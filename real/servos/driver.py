"""The driver of an arm of servos, without ROS: what becomes of commands, and when they are not followed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robot_rl.real.servos.arm import ServoArm, ServoReading
from robot_rl.real.servos.bus import BusLost, ServoError

NEAR = 0.1
"""How far from where it is a joint may be told to go at the begin [rad]; the supervisor's own tolerance."""
PATIENCE = 0.1
"""Seconds without an answer of all servos that are a fault; the supervisor's own patience."""
REPEATS = 3
"""Ticks in which a push is ended: nobody answers to goals, so one packet may be lost unseen."""
SEARCH = 0.5
"""Seconds between two looks for a port that is gone."""
PAUSE = 0.1
"""Seconds without a command that end what was commanded before a stop: what comes then was enabled anew."""
GOOD = "ok"


@dataclass(frozen=True)
class ServoTick:
    """What a tick has found.

    Args:
        reading: of the joints, None where a servo was not heard.
        status: "ok", or what stands against motion as a sentence.
    """

    reading: ServoReading | None
    status: str


class ServoDriver:
    """Follows positions while they come and all servos are well.

    It begins with servos as they are found, and follows from the first command on that asks for no jump: then the
    torque is switched on. A fault of a servo ends the push at once: the goal of all of them is where they are.

    A port that is gone is looked for until it is there again with the same servos; they stay as they are found, as at
    the begin. After that, and after a stop from outside, commands that have gone on meanwhile are not followed: only
    those after a pause, which somebody has enabled.

    Args:
        arm: its servos.
        velocity: (J,) largest speeds of the joints [rad/s].
        timeout: seconds after which commands have stopped; 0 = never.
        limp: without commands the arm is let go; False: it holds.

    Raises:
        ServoError: a servo does not answer, or is another one than the card says.

    Attributes:
        following: whether commands are followed now.
        silent: whether commands have stopped.
        lost: why the port is gone, "" while it is there.
    """

    def __init__(self, arm: ServoArm, velocity: np.ndarray, *, timeout: float, limp: bool = False) -> None:
        self._arm, self._velocity, self._limp = arm, velocity, limp
        self._timeout = timeout or np.inf
        self.following = self.silent = False
        self._driven = False  # by us: torque was switched on
        self._stood = 0  # ticks since a fault began
        self._stop: np.ndarray | None = None  # where it began
        self._unheard: set[int] = set()  # ids that were missed, and may have been without power
        self._heard = -np.inf  # when all servos were
        self._well, self._told, self._asked = True, GOOD, -np.inf
        self._stale = False  # commands are those of before a stop
        self._void = -np.inf  # when the last of those came
        self.lost, self._gone, self._sought = "", "", -np.inf
        self._begin()

    def tick(self, now: float, command: np.ndarray | None, arrived: float, *, stop: str = "") -> ServoTick:
        """Read all joints, and send the newest command where it may be followed.

        Args:
            now: [s of the steady clock].
            command: (J,) newest positions that were asked for [rad], None before the first.
            arrived: when they came.
            stop: what stands against motion outside of the arm, as a sentence; "" = nothing.
        """
        if self.lost and (missed := self._search(now)):
            return ServoTick(None, missed)
        try:
            return self._tick(now, command, arrived, stop)
        except BusLost as error:
            self.lost = self._gone = str(error)
            self._sought = now
            self.following, self._stale = False, True
            return ServoTick(None, self.lost)

    def _search(self, now: float) -> str:
        """Look for the port, and see that it is the same arm; what is wrong still, "" when nothing."""
        if now - self._sought < SEARCH:
            return self.lost
        self._sought = now
        self._arm.bus.close()
        try:
            self._arm.bus.open()
        except ServoError:
            self.lost = self._gone
            return self.lost
        try:
            self._begin()
        except ServoError as error:
            self.lost = str(error)
            return self.lost
        self.lost, self._told, self._well, self._heard = "", GOOD, True, now
        self._unheard.clear()
        return ""

    def _tick(self, now: float, command: np.ndarray | None, arrived: float, stop: str) -> ServoTick:
        reading = self._arm.read()
        if reading is None:
            self._unheard.update(self._arm.missing)
            return ServoTick(None, self._miss(now))
        self._heard = now
        if self._unheard:  # shorter than our patience, but long enough for a servo to begin anew
            if any(self._arm.forgot(number, self._velocity) for number in self._unheard):
                self.following = self._well = False
            self._unheard.clear()
        if not self._well:  # it may have been without power, and does not know its fences any more
            try:
                self._begin()
            except BusLost:
                raise
            except ServoError as error:
                return ServoTick(reading, str(error))
            self._well, self._told = True, GOOD
        faults = self._arm.faults()
        if faults or stop:
            self._stand(reading)
            self._stale |= bool(stop)
            return ServoTick(reading, "; ".join(filter(None, (faults, stop))))
        self._stood = 0
        if self._stale:
            if command is not None and now - arrived <= PAUSE:
                return ServoTick(reading, "commands have gone on since it was stopped: reset and enable the supervisor")
            self._stale, self._void = False, arrived
        self.silent = command is not None and now - arrived > self._timeout
        if command is None or self.silent:
            self._let_go()
            return ServoTick(reading, GOOD)
        if arrived <= self._void:  # asked for before the stop: nobody has enabled it
            return ServoTick(reading, GOOD)
        if not self.following:
            away = np.abs(command - reading.position)
            far = int(np.argmax(away))
            if away[far] > NEAR:
                return ServoTick(
                    reading,
                    f"{self._arm.joints[far]} is told to begin {away[far]:.2f} rad from where it is, allowed {NEAR:g}: "
                    "reset and enable the supervisor anew",
                )
            self._arm.aim(reading.position)
            self._driven = True  # also where only some of them hear it
            self._arm.drive(True)
            self.following = True
        self._arm.aim(command)
        return ServoTick(reading, GOOD)

    def close(self) -> None:
        """The end: let go where the card says so; else the servos hold where they are, as long as they have power.

        Raises:
            ServoError: a servo does not hear.
        """
        if not self.lost:
            self._let_go()

    def _begin(self) -> None:
        self._arm.check()
        self._arm.prepare(self._velocity)

    def _miss(self, now: float) -> str:
        """One servo was not heard: a while is nothing, more is a fault."""
        if now - self._heard <= PATIENCE:
            return self._told
        if now - self._asked > 1.0:  # asking takes some ticks
            self._asked = now
            self._told = self._arm.bus.diagnose(self._arm.missing) or self._told
        if self._told == GOOD:
            self._told = f"answers of {', '.join(map(self._arm.bus.call, self._arm.missing))} get lost: a plug is loose"
        self.following = self._well = False  # those that hear hold their last goal
        return self._told

    def _stand(self, reading: ServoReading) -> None:
        """A servo reports a fault, followed or held: the push ends."""
        if not self._stood or self._stop is None:
            self._stop = reading.position
        if self._driven and self._stood < REPEATS:
            self._arm.aim(self._stop)  # one place: a goal that is renewed where the arm sinks would sink with it
        self.following, self._stood = False, self._stood + 1

    def _let_go(self) -> None:
        """Commands have ended: the servos hold their last goal by themselves."""
        if self._limp and self._driven:
            self._arm.drive(False)
            self._driven = False
        self.following = False
