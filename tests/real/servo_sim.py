"""Servos on a bus, down to the bytes: a pseudo-terminal behind which STS servos answer, move and fail.

Nothing of ours is imported: the numbers are those of Feetech's protocol and memory table, and the vendor's SDK talks
to it unmodified. What is not known of a real one is not here: friction, gravity, backlash.
"""

import contextlib
import functools
import os
import select
import shlex
import sys
import threading
import time
import tty
from pathlib import Path

LIVE = set()  # buses whose threads run


def clock():
    """Milliseconds that every bus has lived through: where one of their threads waits for a processor, it stands."""
    return 1e3 * min((bus.at for bus in tuple(LIVE)), default=time.monotonic())


PING, READ, WRITE, SYNC_READ, SYNC_WRITE = 1, 2, 3, 0x82, 0x83
EVERYBODY = 0xFE
VOLTAGE, ANGLE, HEAT, CURRENT, OVERLOAD = 1, 2, 4, 8, 32


def packet(head, body):
    """FF FF, id, length, the rest, and the complement of the sum of all but the two first."""
    inner = [head, len(body) + 1, *body]
    return bytes([0xFF, 0xFF, *inner, ~sum(inner) & 0xFF])


class Servo:
    """One servo.

    Args:
        number: its id.
        turned: where its encoder stands, 0 to 4095.
        fresh: of the factory, without what an arm is set to.
    """

    def __init__(self, number=1, turned=2048.0):
        self.memory = bytearray(256)
        self.place, self.speed = float(turned), 0.0  # of the encoder, ticks and ticks per second
        self.silent = self.garbled = False
        self.faults = 0
        self.put(3, 777, 2)
        self.put(7, 250)
        self.put(8, 1)
        self.put(11, 4095, 2)
        self.put(16, 1000, 2)
        self.put(21, 32)
        self.put(22, 32)
        self.put(28, 500, 2)
        self.put(36, 80)
        self.put(5, number)
        self.saved = bytes(self.memory[:40])
        self.cycle()

    def cycle(self):
        """Off and on again: registers below 40 are as they were saved, and nothing is driven."""
        self.memory[:40] = self.saved
        self.memory[40:] = bytes(216)
        self.put(48, self.get(16, 2), 2)
        self.put(55, 1)
        self.put(62, 121)
        self.put(63, 31)
        self.put(85, 150)
        self.show()

    def get(self, address, size=1):
        return int.from_bytes(self.memory[address : address + size], "little")

    def put(self, address, value, size=1):
        self.memory[address : address + size] = value.to_bytes(size, "little")

    @property
    def homing(self):
        raw = self.get(31, 2)
        return -(raw & 0x7FF) if raw & 0x800 else raw

    def told(self):
        return round(self.place - self.homing) % 4096

    def show(self):
        """What it measures, in its registers."""
        self.put(56, self.told(), 2)
        speed = round(self.speed)
        self.put(58, abs(speed) | (0x8000 if speed < 0 else 0), 2)

    def write(self, address, data):
        goal = address <= 42 < address + len(data)
        self.memory[address : address + len(data)] = data
        if address < 40 and not self.get(55):
            self.saved = bytes(self.memory[:40])
        if goal and not self.get(40):
            self.put(40, 1)  # the worst case: a goal switches the torque on
        return goal

    def move(self, seconds):
        """First order towards the goal, within the speed that it was given."""
        if not self.get(40) or self.faults & OVERLOAD:
            self.speed = 0.0
            return
        low, high = self.get(9, 2), self.get(11, 2)
        goal = min(max(self.get(42, 2) & 0x7FFF, low), high)
        most = (self.get(46, 2) & 0x7FFF or 3000) * seconds
        way = (goal - self.told()) * min(seconds / 0.03, 1.0)
        step = min(max(way, -most), most)
        self.place, self.speed = self.place + step, step / seconds
        if abs(goal - self.told()) <= 1 and abs(step) < 1.0:
            self.speed = 0.0


class ServoSim:
    """A bus with servos; `path` is its port.

    Args:
        servos: on it; two may have one id.
        wire: bytes take the time that they take at 1 Mbaud.
        link: a name of the port that lasts, as those in /dev/serial/by-id.

    Attributes:
        heard: (instruction, id, data) of every packet.
        now: () -> seconds by which its servos move.
    """

    def __init__(self, servos=(), *, wire=False, link=None):
        self.servos, self.wire, self.link = list(servos), wire, link
        self.heard, self.now = [], time.monotonic
        self.lock = threading.Lock()
        self.plug()

    def plug(self):
        """The USB cable is in, at a port that may have another name than before."""
        self._end, other = os.openpty()
        tty.setraw(other)
        self.path, self._other = os.ttyname(other), other
        if self.link is not None:
            Path(self.link).symlink_to(self.path)
            self.path = str(self.link)
        self._over, self.at = False, time.monotonic()
        LIVE.add(self)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self):
        self._over = True
        self._thread.join(2.0)
        self.pull()

    def pull(self):
        """The USB cable is out."""
        self._over = True
        self._thread.join(2.0)
        LIVE.discard(self)
        if self.link is not None:
            Path(self.link).unlink(missing_ok=True)
        for end in (self._end, self._other):
            with contextlib.suppress(OSError):
                os.close(end)
        self._end = self._other = -1

    def turn(self, number, turned):
        """A hand turns a servo to where its encoder stands at `turned`."""
        with self.lock:
            servo = next(servo for servo in self.servos if servo.get(5) == number)
            servo.place = float(turned)

    def _work(self):
        waiting, before = b"", self.now()
        while not self._over:
            if select.select([self._end], [], [], 0.002)[0]:
                try:
                    waiting += os.read(self._end, 4096)
                except OSError:  # nobody has the port open
                    time.sleep(0.002)
            with self.lock:
                lived, now = time.monotonic(), self.now()
                for servo in self.servos if now > before else ():
                    servo.move(now - before)
                    servo.show()
                before = now
                waiting = self._take(waiting)
            self.at = lived

    def _take(self, waiting):
        while len(waiting) >= 6:
            if waiting[:2] != b"\xff\xff" or waiting[2] == 0xFF:
                waiting = waiting[1:]
                continue
            length = waiting[3] + 4
            if len(waiting) < length:
                return waiting
            whole, waiting = waiting[:length], waiting[length:]
            if ~sum(whole[2:-1]) & 0xFF == whole[-1]:
                self.heard.append((whole[4], whole[2], whole[5:-1]))
                answer = self._answer(whole[2], whole[4], whole[5:-1])
                if self.wire:
                    time.sleep((len(whole) + len(answer)) * 1e-5)  # ten bits to a byte
                if answer:
                    os.write(self._end, answer)
        return waiting

    def _of(self, number):
        return [servo for servo in self.servos if servo.get(5) == number and not servo.silent]

    def _say(self, servos, data):
        """The answers of servos that speak at once: where they differ, the line is low."""
        said = []
        for servo in servos:
            one = bytearray(packet(servo.get(5), [servo.faults, *data(servo)]))
            one[-1] ^= 0x55 * servo.garbled
            said.append(bytes(one))
        if len(said) > 1:  # one of them is a little later, too
            return bytes(a & b for a, b in zip(said[0], said[1][1:] + b"\xff"))
        return said[0] if said else b""

    def _answer(self, number, instruction, data):
        if instruction == PING and number == EVERYBODY:
            return b"".join(
                self._say(self._of(one), lambda servo: []) for one in sorted({servo.get(5) for servo in self.servos})
            )
        if instruction == PING:
            return self._say(self._of(number), lambda servo: [])
        if instruction == READ:
            return self._say(self._of(number), lambda servo: servo.memory[data[0] : data[0] + data[1]])
        if instruction == WRITE:
            listeners = self._of(number)
            answer = self._say(listeners, lambda servo: [])
            for servo in listeners:
                servo.write(data[0], data[1:])
            return answer
        if instruction == SYNC_READ:
            return b"".join(
                self._say(self._of(one), lambda servo: servo.memory[data[0] : data[0] + data[1]]) for one in data[2:]
            )
        if instruction == SYNC_WRITE:
            address, size = data[:2]
            for i in range(2, len(data), size + 1):
                for servo in self._of(data[i]):
                    servo.write(address, data[i + 1 : i + 1 + size])
        return b""


def main():
    """A bus of six as a process of its own, with a link to its port if one is named: says its path, then does what each
    line says, and tells where all are.

    turn <id> <place>, faults <id> <bits>, silent <id>; an empty line changes nothing, pull takes the cable out, plug
    puts it back.
    """
    with contextlib.suppress(OSError, AttributeError):  # servos do not wait for a processor
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(35))
    sim = arm(wire=True, link=sys.argv[1] if len(sys.argv) > 1 else None)
    tell = functools.partial(print, flush=True)
    tell(sim.path)
    for line in sys.stdin:
        what, *numbers = line.split() or [""]
        if what == "turn":
            sim.turn(int(numbers[0]), float(numbers[1]))
        elif what == "faults":
            sim.servos[int(numbers[0]) - 1].faults = int(numbers[1])
        elif what == "silent":
            sim.servos[int(numbers[0]) - 1].silent = True
        elif what == "pull":
            sim.pull()
        elif what == "plug":
            sim.plug()
        with sim.lock:
            tell(*(f"{servo.place:.1f} {servo.get(40)}" for servo in sim.servos))


def page(begin, **given):
    """Words of the line of docs/howto/so101.md that begins so, with <name> replaced by what is given."""
    text = (Path(__file__).parents[2] / "docs/howto/so101.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith(f"robot-rl {begin}"))
    for name, value in given.items():
        line = line.replace(f"<{name}>", value)
    return shlex.split(line.replace("/dev/serial/by-id//", "/"))[1:]


def arm(count=6, **options):
    """A bus with servos 1 to `count`, all in the middle."""
    return ServoSim([Servo(i + 1) for i in range(count)], **options)


if __name__ == "__main__":
    main()
