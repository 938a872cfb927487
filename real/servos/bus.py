"""Servos on a serial bus, through the vendor's SDK: numbers in and out, and every failure as one sentence."""

from __future__ import annotations

import errno
import termios
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any, TypeVar

from robot_rl.extras import require
from robot_rl.real.servos.registers import ID, LOCK, Register

require("serial")
require("scservo_sdk")

import serial  # noqa: E402  (after the check that it is there)

try:
    from scservo_sdk import GroupSyncWrite, PortHandler, sms_sts
    from scservo_sdk.port_handler import LATENCY_TIMER
    from scservo_sdk.scservo_def import (
        BROADCAST_ID,
        COMM_RX_CORRUPT,
        COMM_RX_TIMEOUT,
        COMM_SUCCESS,
        INST_PING,
        INST_READ,
    )
except ImportError as error:  # an older package of another maker has the same module name
    raise ImportError(
        f"the module scservo_sdk is not that of ftservo-python-sdk ({error}): another package lies over it, "
        "such as feetech-servo-sdk. Take an environment of its own for LeRobot, or: pip uninstall feetech-servo-sdk && "
        "pip install --force-reinstall ftservo-python-sdk"
    ) from error

ANSWER_MS = 20.0
"""Longest wait for an answer beyond its time on the wire: some adapters keep bytes for 16 ms. The SDK's 50 would be
five ticks in which nobody else is heard."""
ANSWER = 6
"""Bytes of an answer beside what was asked for."""
CALL = 0.3
"""Seconds within which everybody has answered."""
SILENCE = 0.005
"""Seconds without a byte after which nobody is answering any more."""
TRIES = 3
T = TypeVar("T")


class ServoError(RuntimeError):
    """A servo or the bus fails; the message is one sentence with what to do."""


class BusLost(ServoError):
    """The port itself is gone; nobody can be told anything any more."""


class Line(PortHandler):
    """The vendor's port, which sleeps until bytes come and gives up sooner."""

    def getCurrentTime(self) -> float:
        """Milliseconds of a clock that nobody sets: waits of the SDK would end when the time of day is."""
        return 1e3 * time.monotonic()

    def setPacketTimeout(self, packet_length: int) -> None:
        """Begin to wait for an answer of so many bytes."""
        super().setPacketTimeout(packet_length)
        self.packet_timeout += ANSWER_MS - LATENCY_TIMER

    def openPort(self) -> bool:
        """Open, for nobody else."""
        opened = bool(super().openPort())
        if self.ser is not None:
            self.ser.timeout = 0.002
            self.ser.exclusive = True
        return opened


def ports() -> list[str]:
    """Serial ports that are there, by names that last."""
    return sorted(glob("/dev/serial/by-id/*")) or sorted(glob("/dev/ttyACM*") + glob("/dev/ttyUSB*"))


class ServoBus:
    """One bus with its servos.

    Args:
        port: path of its device.
        baud: bits per second.
        names: id -> name of its joint, for messages.

    Attributes:
        faults: id -> error byte of the last answer.

    Raises:
        ServoError: there is no such port, it may not be opened, or somebody else has it.
    """

    def __init__(self, port: str, *, baud: int = 1_000_000, names: Mapping[int, str] | None = None) -> None:
        self.port, self.names = port, dict(names or {})
        self.faults: dict[int, int] = {}
        self._baud = baud
        self.open()

    def open(self) -> None:
        """Open the port, which the constructor has done, anew: it was gone, and may be there again.

        Raises:
            ServoError: there is no such port, it may not be opened, or somebody else has it.
        """
        self._line = Line(self.port)
        self._line.baudrate = self._baud
        self._packets = sms_sts(self._line)
        try:
            self._line.openPort()
        except (serial.SerialException, OSError, termios.error) as error:
            self.close()
            raise ServoError(_why_closed(self.port, error)) from error

    def close(self) -> None:
        """Let the port go."""
        if self._line.ser is not None:
            self._line.ser.close()

    def call(self, number: int) -> str:
        """A servo by its id and joint."""
        return f"servo {number} ({self.names[number]})" if number in self.names else f"servo {number}"

    def ping(self, number: int) -> int | None:
        """Model number of a servo, None where nobody answers.

        Raises:
            ServoError: what comes is garbled, as from two servos of one id.
        """
        result = COMM_RX_TIMEOUT
        for _ in range(TRIES):
            try:
                model, result, bits = self._guard(lambda: self._packets.ping(number))
            except IndexError:  # the SDK's, where a shorter answer to what was asked before comes late
                model, result, bits = 0, COMM_RX_CORRUPT, 0
            if result == COMM_SUCCESS:
                self.faults[number] = bits
                return int(model)
            self._listen_until_silent()
        if result == COMM_RX_TIMEOUT:
            return None
        raise ServoError(self._why_garbled(number))

    def everybody(self) -> list[int]:
        """Ids of all who answer a call to everybody.

        Raises:
            ServoError: what comes is garbled, as from two servos of one id.
        """
        call = [0, 0, BROADCAST_ID, 2, INST_PING, 0]
        said, end = b"", time.monotonic() + CALL
        self._guard(lambda: self._packets.txPacket(call))
        while time.monotonic() < end:
            said += self._guard(lambda: self._line.readPort(250))
        answers = [said[i : i + ANSWER] for i in range(0, len(said), ANSWER)]
        if any(len(one) < ANSWER or one[:2] != b"\xff\xff" or ~sum(one[2:5]) & 0xFF != one[5] for one in answers):
            raise ServoError(
                f"what comes on {self.port} is garbled: two servos have one id; plug in one at a time, and give it its "
                "own with robot-rl robot motors <card> set=<joint>"
            )
        return [one[2] for one in answers]

    def read(self, number: int, register: Register) -> int:
        """A number of one servo.

        Raises:
            ServoError: it does not answer, or not readably.
        """

        def exchange() -> tuple[Any, int, int]:
            said, result, bits = self._packets.txRxPacket(
                [0, 0, number, 4, INST_READ, register.address, register.size, 0]
            )
            data = (said or [])[5:-1]
            if result == COMM_SUCCESS and len(data) != register.size:  # readTxRx would take the checksum for data
                result = COMM_RX_CORRUPT
            return data, result, bits

        return register.decode(int.from_bytes(bytes(self._ask(number, exchange)), "little"))

    def write(self, number: int, register: Register, value: int) -> None:
        """Write a number of one servo, and see that it has heard.

        Raises:
            ServoError: it does not answer, or not readably.
        """
        data = list(register.encode(value).to_bytes(register.size, "little"))
        self._ask(number, lambda: (None, *self._packets.writeTxRx(number, register.address, register.size, data)))

    def write_lasting(self, number: int, values: Mapping[Register, int]) -> None:
        """Write numbers that stay without power: those that differ, and see that they are there.

        Raises:
            ServoError: it does not answer, or keeps another number.
        """
        wrong = {register: value for register, value in values.items() if self.read(number, register) != value}
        if not wrong:
            return
        self.write(number, LOCK, 0)
        try:
            for register, value in wrong.items():
                self.write(number, register, value)
                kept = self.read(number, register)
                if kept != value:
                    raise ServoError(
                        f"{self.call(number)} keeps {kept} at address {register.address}, expected {value}: is it an "
                        "STS servo?"
                    )
        finally:
            self.write(number, LOCK, 1)

    def rename(self, number: int, to: int) -> None:
        """Give a servo another id, which stays without power.

        Raises:
            ServoError: it does not answer under the new one.
        """
        self.write(number, LOCK, 0)
        self._guard(lambda: self._packets.write1ByteTxOnly(number, ID.address, to))  # who answers has which id?
        self.write(to, LOCK, 1)
        if self.read(to, ID) != to:
            raise ServoError(f"{self.call(number)} did not take the id {to}")

    def read_all(self, numbers: Sequence[int], address: int, size: int) -> dict[int, bytes]:
        """The same bytes of many servos in one exchange: id -> bytes of those that answered readably.

        Raises:
            BusLost: the port is gone.
        """
        begun = self._guard(lambda: self._packets.syncReadTx(address, size, list(numbers), len(numbers)))
        if begun != COMM_SUCCESS:
            return {}
        _, said = self._guard(lambda: self._packets.syncReadRx(size, len(numbers)))
        # The SDK's own reading of it (GroupSyncRead) fails with an IndexError where an answer is cut off.
        found, rest = {}, bytes(said)
        while (begin := rest.find(b"\xff\xff")) >= 0 and len(rest) >= begin + ANSWER + size:
            one, rest = rest[begin : begin + ANSWER + size], rest[begin + 1 :]
            if one[2] in numbers and one[3] == size + 2 and ~sum(one[2:-1]) & 0xFF == one[-1]:
                self.faults[one[2]] = one[4]
                found[one[2]] = one[5:-1]
                rest = rest[len(one) - 1 :]
        return found

    def write_all(self, register: Register, values: Mapping[int, int]) -> None:
        """A number of each of many servos in one packet; nobody answers.

        Raises:
            BusLost: the port is gone.
        """
        group = GroupSyncWrite(self._packets, register.address, register.size)
        for number, value in values.items():
            group.addParam(number, list(register.encode(value).to_bytes(register.size, "little")))
        if self._guard(group.txPacket) != COMM_SUCCESS:
            raise ServoError(f"{self.port} took no packet; restart whoever uses it")

    def diagnose(self, numbers: Iterable[int]) -> str:
        """What is wrong with servos that were not heard, as a sentence."""
        silent = []
        for number in numbers:
            try:
                if self.ping(number) is None:
                    silent.append(number)
            except BusLost:
                raise
            except ServoError as error:
                return str(error)
        return self._why_silent(silent) if silent else ""

    def _ask(self, number: int, exchange: Callable[[], tuple[Any, int, int]]) -> Any:
        result = COMM_RX_TIMEOUT
        for _ in range(TRIES):
            data, result, bits = self._guard(exchange)
            if result == COMM_SUCCESS:
                self.faults[number] = bits
                return data
            self._listen_until_silent()
        raise ServoError(self._why_silent([number]) if result == COMM_RX_TIMEOUT else self._why_garbled(number))

    def _listen_until_silent(self) -> None:
        """An answer that comes late is not taken for one to the next question."""
        begun = heard = time.monotonic()
        while (now := time.monotonic()) < min(heard + SILENCE, begun + CALL):
            if self._guard(lambda: self._line.readPort(250)):
                heard = now

    def _guard(self, exchange: Callable[[], T]) -> T:
        try:
            return exchange()
        except (serial.SerialException, OSError, termios.error) as error:
            raise BusLost(
                f"{self.port} is gone ({error}): its USB cable is out, or its board has lost power. The servos hold "
                "what they were told last; plug it in again"
            ) from error
        finally:
            self._line.is_using = False  # the SDK forgets to where an exchange fails

    def _why_silent(self, numbers: list[int]) -> str:
        who = ", ".join(map(self.call, numbers))
        many = len(numbers) > 1
        return (
            f"{who} on {self.port} {'do' if many else 'does'} not answer: no power, a plug that is out, or another id; "
            "robot-rl robot motors <card> shows who is there"
        )

    def _why_garbled(self, number: int) -> str:
        return (
            f"what {self.call(number)} answers on {self.port} is garbled: two servos have this id (set one at a time, "
            "robot-rl robot motors <card> set=<joint>), or a plug is loose"
        )


def _why_closed(port: str, error: Exception) -> str:
    number = error.args[0] if error.args else None
    text = str(error)
    if number == errno.ENOENT or not Path(port).exists():
        there = ", ".join(ports())
        return f"there is no port {port}; {f'there are {there}' if there else 'no serial port is plugged in'}"
    if number == errno.EACCES or "Permission" in text:
        return f"{port} may not be opened by this user: sudo usermod -aG dialout $USER, then log out and in again"
    if number == errno.EBUSY or "exclusive" in text or "lock" in text:
        return f"{port} is used by another program, such as a driver that still runs: end that first"
    if "(25," in text or number == errno.ENOTTY:
        there = ", ".join(ports())
        return f"{port} is no serial port; {f'there are {there}' if there else 'none is plugged in'}"
    return f"{port} could not be opened ({text})"
