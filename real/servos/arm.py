"""An arm of servos as joints in radians: what it tells, where it goes, and whether it is the arm of its card."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from robot_rl.real.servos.bus import ServoBus, ServoError
from robot_rl.real.servos.registers import (
    ACCELERATION,
    GOAL,
    GOAL_SPEED,
    HIGHEST,
    HOMING,
    LOAD,
    LOCK,
    LOWEST,
    MODE,
    POSITION,
    SPEED,
    STATE,
    TEMPERATURE,
    TORQUE,
    VOLTAGE,
    Register,
    faults_of,
)
from robot_rl.types.card import TICK, MotorCard, ServosCard

FENCE = 1.2
"""The servo's own largest speed, as a multiple of the joint's: a second fence behind the supervisor's."""


class ServoReading(NamedTuple):
    """What the servos tell, in the order of the arm's joints.

    Args:
        stamp: when it was asked for [s of the steady clock].
        position: (J,) [rad].
        velocity: (J,) [rad/s].
        load: (J,) share of the largest drive, -1 to 1.
        volts: (J,) supply [V].
        celsius: (J,) temperature.
    """

    stamp: float
    position: np.ndarray
    velocity: np.ndarray
    load: np.ndarray
    volts: np.ndarray
    celsius: np.ndarray


def open_bus(servos: ServosCard, port: str = "") -> ServoBus:
    """The bus of a card.

    Args:
        servos: of the card.
        port: another port than the card's.

    Raises:
        ServoError: it cannot be opened.
    """
    names = {motor.id: name for name, motor in servos.motors.items()}
    return ServoBus(port or servos.port, baud=servos.baud, names=names)


class ServoArm:
    """The servos of some joints.

    Args:
        bus: they are on.
        motors: joint -> its servo.
        joints: names, in the order of all vectors here.

    Raises:
        ServoError: a joint has no servo on the card.

    Attributes:
        missing: ids that were not heard at the last `read`.
    """

    def __init__(self, bus: ServoBus, motors: dict[str, MotorCard], joints: Sequence[str]) -> None:
        absent = [name for name in joints if name not in motors]
        if absent:
            raise ServoError(
                f"the card has no servo for {', '.join(absent)}; robot-rl robot calibrate-arm <card> finds them"
            )
        self.bus, self.joints = bus, tuple(joints)
        self._motors = [motors[name] for name in joints]
        self._ids = [motor.id for motor in self._motors]
        self._rate = np.array([motor.sign * motor.scale * TICK for motor in self._motors])
        self.missing: list[int] = []

    def check(self) -> None:
        """See that all servos answer and are those that the card was calibrated with.

        Raises:
            ServoError: names the servo.
        """
        problem = self.bus.diagnose(self._ids)
        if problem:
            raise ServoError(problem)
        for name, motor in zip(self.joints, self._motors):
            for register, what, wanted in (
                (MODE, "mode", 0),
                (HOMING, "homing", motor.homing),
                (LOWEST, "a lowest position of", motor.low),
                (HIGHEST, "a highest position of", motor.high),
            ):
                kept = self.bus.read(motor.id, register)
                if kept != wanted:
                    raise ServoError(
                        f"servo {motor.id} ({name}) keeps {what} {kept}, and the card says {wanted}: this is another "
                        "arm, or another program has calibrated it since; robot-rl robot calibrate-arm <card>"
                    )

    def prepare(self, velocity: np.ndarray) -> None:
        """What a servo forgets without power: its own fence on speed, and no ramp of its own.

        Args:
            velocity: (J,) largest speeds of the joints [rad/s].
        """
        for motor, rate, most in zip(self._motors, self._rate, velocity):
            self.bus.write(motor.id, ACCELERATION, 254)
            self.bus.write(motor.id, GOAL_SPEED, _fence(most, rate))
            self.bus.write(motor.id, LOCK, 1)  # a calibration that was killed leaves it open

    def forgot(self, number: int, velocity: np.ndarray) -> bool:
        """Whether a servo has been without power since `prepare`: its fence on speed is gone.

        Args:
            number: its id.
            velocity: (J,) as `prepare` was given it [rad/s].

        Raises:
            ServoError: it does not answer.
        """
        i = self._ids.index(number)
        return self.bus.read(number, GOAL_SPEED) != _fence(velocity[i], self._rate[i])

    def read(self) -> ServoReading | None:
        """What all of them tell, None where one was not heard (`missing`).

        Raises:
            BusLost: the port is gone.
        """
        stamp = time.monotonic()
        found = self.bus.read_all(self._ids, *STATE)
        self.missing = [number for number in self._ids if number not in found]
        if self.missing:
            return None
        rows = [found[number] for number in self._ids]
        position = [motor.to_joint(_part(row, POSITION)) for motor, row in zip(self._motors, rows)]
        return ServoReading(
            stamp,
            np.array(position),
            self._rate * [_part(row, SPEED) for row in rows],
            np.array([_part(row, LOAD) / 1000.0 for row in rows]),
            np.array([_part(row, VOLTAGE) / 10.0 for row in rows]),
            np.array([float(_part(row, TEMPERATURE)) for row in rows]),
        )

    def aim(self, position: np.ndarray) -> None:
        """Go to (J,) positions [rad], within the ends of each joint.

        Raises:
            BusLost: the port is gone.
        """
        goals = {motor.id: motor.to_ticks(float(value)) for motor, value in zip(self._motors, position)}
        self.bus.write_all(GOAL, goals)

    def drive(self, on: bool) -> None:
        """Switch the torque on or off; off reaches every servo that hears, whoever else does not.

        Raises:
            ServoError: a servo does not hear.
        """
        if not on:
            self.bus.write_all(TORQUE, dict.fromkeys(self._ids, 0))
        for number in self._ids:
            self.bus.write(number, TORQUE, int(on))

    def release_leader(self) -> None:
        """Let the servos of a leader arm go, whom nobody drives.

        Raises:
            ServoError: a servo pushes: this is a robot, which would drop.
        """
        stiff = [name for name, number in zip(self.joints, self._ids) if self.bus.read(number, TORQUE)]
        if stiff:
            raise ServoError(
                f"the torque of {', '.join(stiff)} on {self.bus.port} is on: a leader is moved by hand, and a robot "
                "would drop if it were let go; is this the port of the leader? If it is, robot-rl robot motors <card> "
                "free=true lets it go"
            )
        self.drive(False)

    def beside(self, position: np.ndarray, before: np.ndarray) -> np.ndarray:
        """(J,) positions [rad] that servos at `position` can mean, nearest to `before`: a joint that a hand turns past
        the seam of its encoder goes on, and does not jump by a turn."""
        turn = 4096.0 * np.abs(self._rate)
        return before + (position - before + 0.5 * turn) % turn - 0.5 * turn

    def faults(self) -> str:
        """What the last answers report, as sentences; "" when all is well."""
        said = [
            f"{self.bus.call(number)}: {faults_of(self.bus.faults[number])}"
            for number in self._ids
            if faults_of(self.bus.faults.get(number, 0))
        ]
        return "; ".join(said)


def _fence(most: float, rate: float) -> int:
    """Largest speed of a servo [ticks/s]; never 0, which it takes for none."""
    return round(min(max(FENCE * most / abs(rate), 1.0), 32767.0))


def _part(row: bytes, register: Register) -> int:
    begin = register.address - STATE[0]
    return register.decode(int.from_bytes(row[begin : begin + register.size], "little"))
