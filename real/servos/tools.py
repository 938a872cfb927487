"""What the command line does with a bus of servos."""

from __future__ import annotations

from typing import Any

from robot_rl.real.servos.bus import ServoBus, ServoError, ports
from robot_rl.real.servos.calibrate import JointPlan, calibrate
from robot_rl.real.servos.registers import POSITION, TEMPERATURE, TORQUE, VOLTAGE, faults_of

__all__ = ["TORQUE", "JointPlan", "ServoBus", "calibrate", "look", "ports", "set_number"]


def look(bus: ServoBus, number: int) -> dict[str, Any] | None:
    """How a servo is, None where nobody answers.

    Raises:
        ServoError: what comes is garbled.
    """
    model = bus.ping(number)
    if model is None:
        return None
    return {
        "id": number,
        "model": model,
        "position": bus.read(number, POSITION),
        "volts": bus.read(number, VOLTAGE) / 10.0,
        "celsius": bus.read(number, TEMPERATURE),
        "torque": bool(bus.read(number, TORQUE)),
        "faults": faults_of(bus.faults[number]),
    }


def set_number(bus: ServoBus, number: int) -> int:
    """Give the only servo on the bus an id.

    Returns:
        The one that it had.

    Raises:
        ServoError: none answers, or more than one.
    """
    found = bus.everybody()
    if len(found) != 1:
        there = f"ids {', '.join(map(str, found))} answer" if found else f"nobody answers on {bus.port}"
        raise ServoError(f"{there}; plug in the one servo that is meant, with its power, and no other")
    if found[0] != number:
        bus.rename(found[0], number)
    return found[0]
