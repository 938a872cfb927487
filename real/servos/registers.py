"""Registers of Feetech's STS servos, and what they are set to.

Source: the vendor's SDK (scservo_sdk/sms_sts.py) for the addresses that it names; Feetech's STS memory table as LeRobot
0.4.4 writes it down (lerobot/motors/feetech/tables.py) for the rest, and lerobot/robots/so_follower/so_follower.py and
feetech.py for what an SO-101 is set to.
"""

from __future__ import annotations

from typing import NamedTuple


class Register(NamedTuple):
    """Where a number of a servo lies.

    Args:
        address: of its first byte.
        size: bytes, the low one first.
        sign: bit that says minus; None = never.
    """

    address: int
    size: int = 1
    sign: int | None = None

    def encode(self, value: int) -> int:
        """The number as the servo keeps it: amount and sign, no two's complement."""
        if self.sign is None or value >= 0:
            return value
        return -value | 1 << self.sign

    def decode(self, raw: int) -> int:
        """Inverse of `encode`."""
        if self.sign is None or not raw >> self.sign & 1:
            return raw
        return -(raw & ~(1 << self.sign))


MODEL = Register(3, 2)
ID = Register(5)
RETURN_DELAY = Register(7)
LOWEST = Register(9, 2)
HIGHEST = Register(11, 2)
MOST_TORQUE = Register(16, 2)
GAIN_P, GAIN_D, GAIN_I = Register(21), Register(22), Register(23)
PROTECTION_CURRENT = Register(28, 2)
HOMING = Register(31, 2, 11)
MODE = Register(33)
OVERLOAD_TORQUE = Register(36)
TORQUE = Register(40)
ACCELERATION = Register(41)
GOAL = Register(42, 2, 15)
GOAL_SPEED = Register(46, 2, 15)
LOCK = Register(55)
POSITION = Register(56, 2, 15)
SPEED = Register(58, 2, 15)
LOAD = Register(60, 2, 10)
VOLTAGE = Register(62)
TEMPERATURE = Register(63)
MOST_ACCELERATION = Register(85)

STATE = (POSITION.address, 8)
"""First address and bytes of position, speed, load, voltage and temperature, which lie side by side."""

SETTINGS = {
    MODE: 0,  # follow positions
    RETURN_DELAY: 0,  # 2 us instead of 500: six answers a tick
    GAIN_P: 16,  # half of the factory's, against shaking
    GAIN_I: 0,
    GAIN_D: 32,
    MOST_ACCELERATION: 254,
}
"""What every servo of an arm is set to."""
GENTLE = {MOST_TORQUE: 500, PROTECTION_CURRENT: 250, OVERLOAD_TORQUE: 25}
"""And that of a gripper, which closes on things: half of its torque and current."""

FAULTS = {
    1: "its supply is outside its limits: is it the power supply of this arm (5 or 12 V)",
    2: "its angle sensor fails: it has to be replaced",
    4: "it is too hot: let it cool down, and find what it presses against",
    8: "it draws too much current: free the joint",
    32: "it is overloaded: free the joint, or carry less",
}
"""Bits of the error byte of an answer."""


def faults_of(bits: int) -> str:
    """What the error byte of a servo says, "" when nothing."""
    return " and ".join(text for bit, text in FAULTS.items() if bits & bit)
