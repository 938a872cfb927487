"""A leader arm of servos on topics: its joints, and the dead-man's switch of whoever moves it."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool

from robot_rl.real.core.clock import SteadyClock
from robot_rl.real.core.scheduler import Scheduler
from robot_rl.real.ros.io import joint_state, qos
from robot_rl.real.ros.node_base import node_beside
from robot_rl.real.servos.arm import ServoArm, open_bus
from robot_rl.real.servos.bus import ServoError
from robot_rl.types.card import Card

HOLD = 0.55
"""Seconds that a key counts as held after its last report: terminals tell presses and repeats, never releases."""
PATIENCE = 0.25
"""Seconds without a servo's answer after which the dead-man's switch is let go, and the servo named."""


def lead(
    found: Card,
    say: Callable[[str], None],
    *,
    port: str,
    names: Mapping[str, str],
    rate: float,
    topic: str,
    namespace: str,
    space: bool,
) -> None:
    """Publish a leader arm's joints, and whether the space bar is held, until Ctrl-C.

    Args:
        found: the card of the leader, calibrated.
        say: prints a line.
        port: another port than the card's.
        names: joint of the leader -> joint of the robot; the others keep theirs.
        rate: messages per second.
        topic: of the joints.
        namespace: of the topics.
        space: the space bar of this terminal is the dead-man's switch.

    Raises:
        ValueError: a joint in `names` that the leader has not, or no terminal.
        ServoError: the bus or a servo fails; says what to do.
    """
    assert found.servos is not None
    motors = found.servos.motors
    wrong = [name for name in names if name not in motors]
    if wrong:
        raise ValueError(f"names: the leader has no joint {wrong[0]}, it has {', '.join(motors)}")
    if space and not sys.stdin.isatty():
        raise ValueError("the space bar needs a terminal; deadman=elsewhere where another node holds robot_rl/deadman")
    bus = open_bus(found.servos, port)
    try:
        arm = ServoArm(bus, motors, list(motors))
        arm.check()
        arm.release_leader()
        told = [names.get(name, name) for name in motors]
        with node_beside("leader_arm", namespace=namespace) as node, _keys(space):
            joints = node.create_publisher(JointState, topic, qos("state_out"))
            deadman = node.create_publisher(Bool, "robot_rl/deadman", qos("event"))
            say(f"{found.name} leads {', '.join(told)}. Ctrl-C ends" + "; hold the space bar to drive" * space)
            scheduler, pressed, heard = Scheduler(1.0 / rate, SteadyClock()), -HOLD, time.monotonic()
            place: np.ndarray | None = None
            while True:
                scheduler.wait()
                try:
                    reading, now = arm.read(), time.monotonic()
                except ServoError:  # the cable is out
                    deadman.publish(Bool(data=False))
                    raise
                if space and _space():
                    pressed = now
                if reading is not None:
                    heard, stamp = now, 1e-9 * node.get_clock().now().nanoseconds
                    place = reading.position if place is None else arm.beside(reading.position, place)
                    joints.publish(joint_state(told, place, reading.velocity, None, stamp))
                elif now - heard > PATIENCE:
                    deadman.publish(Bool(data=False))
                    raise ServoError(bus.diagnose(arm.missing) or "answers of the leader's servos get lost")
                if space:
                    deadman.publish(Bool(data=now - pressed < HOLD))
    except KeyboardInterrupt:
        pass
    finally:
        bus.close()


@contextlib.contextmanager
def _keys(wanted: bool) -> Iterator[None]:
    """Keys come as they are pressed."""
    if not wanted:
        yield
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    tty.setcbreak(handle)
    try:
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _space() -> bool:
    """Whether the space bar was reported since the last look."""
    handle = sys.stdin.fileno()
    if not select.select([handle], [], [], 0.0)[0]:
        return False
    return b" " in os.read(handle, 64)
