"""Calibration of an arm by hand: middle of every joint, ends of its range, and what its servos keep.

Everything is measured first, with whatever offsets the servos have; they are written when all of it is plausible, and
put back as they were where that fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from robot_rl.real.servos.bus import ServoBus, ServoError
from robot_rl.real.servos.registers import (
    GENTLE,
    HIGHEST,
    HOMING,
    LOWEST,
    POSITION,
    SETTINGS,
    TORQUE,
    Register,
)
from robot_rl.types.card import TICK, MotorCard

MIDDLE = 2047
"""What a servo tells in the middle of its joint, furthest from its seam."""
NARROW, WIDE = 0.8, 1.25
"""A measured range may be this share of the model's."""
HANDLE = 0.25
"""And that of a gripper at least: the handle of a leader arm moves less than the fingers that it leads."""
MOVED = 0.15
"""Radians that are a move of a hand, and no joint that sinks."""
JUMP = 1024
"""Ticks between two looks that no hand moves: the joint has passed the far side of its encoder."""


class JointPlan(NamedTuple):
    """A joint that is calibrated.

    Args:
        name: of the joint.
        number: id of its servo.
        lower: smallest position in the model [rad].
        upper: largest one.
        turning: it has no ends: the middle is its 0, and its range the model's.
        gripper: its measured range stands for the model's, however far it really goes.
        sign: -1 = the servo counts against the joint.
    """

    name: str
    number: int
    lower: float
    upper: float
    turning: bool = False
    gripper: bool = False
    sign: Literal[1, -1] = 1


class Guide(Protocol):
    """Whoever leads a person through it."""

    def ask(self, what: str) -> None:
        """Say what to do, and wait until it is done."""
        ...

    def say(self, what: str) -> None:
        """Say what to do now."""
        ...

    def moving(self, ways: Mapping[str, tuple[float, float]]) -> bool:
        """Show how far each joint has been moved from its middle [rad of the servo]; False once the person is done."""
        ...


def calibrate(bus: ServoBus, plans: Sequence[JointPlan], guide: Guide) -> dict[str, MotorCard]:
    """Find and write what the servos of an arm keep.

    Args:
        bus: they are on.
        plans: joints.
        guide: leads the person.

    Returns:
        Joint -> its servo, as a card has it.

    Raises:
        ServoError: a servo does not answer.
        ValueError: a range that is not plausible; nothing was written.
    """
    numbers = [plan.number for plan in plans]
    problem = bus.diagnose(numbers)
    if problem:
        raise ServoError(problem)
    homing = {number: bus.read(number, HOMING) for number in numbers}
    for number in numbers:
        bus.write(number, TORQUE, 0)
    guide.ask("Move every joint by hand to the middle of its range")
    middle = _raw(bus, homing)
    ways = dict.fromkeys(numbers, 0)
    ends: dict[int, tuple[int, int]] = dict.fromkeys(numbers, (0, 0))
    for plan in plans:
        guide.say(f"Move {plan.name} from one end to the other, and no other joint")
        step = {number: (way, way) for number, way in ways.items()}
        while guide.moving({plan.name: (ends[plan.number][0] * TICK, ends[plan.number][1] * TICK) for plan in plans}):
            for number, raw in _raw(bus, homing).items():
                way = (raw - middle[number] + 2048) % 4096 - 2048
                if abs(way - ways[number]) > JUMP:
                    raise ValueError(
                        f"{bus.call(number)} passed the far side of its encoder: it was not in the middle of its range "
                        "at the begin; begin again. Nothing was written"
                    )
                ways[number] = way
                step[number] = min(step[number][0], way), max(step[number][1], way)
                ends[number] = min(ends[number][0], way), max(ends[number][1], way)
        _same(bus, plan, {number: (high - low) * TICK for number, (low, high) in step.items()})
    found = {plan.name: _judge(plan, middle[plan.number], ends[plan.number]) for plan in plans}
    with _put_back(bus, numbers):
        for plan in plans:
            motor = found[plan.name]
            bus.write_lasting(plan.number, {**SETTINGS, **(GENTLE if plan.gripper else {})})
            bus.write_lasting(plan.number, {HOMING: motor.homing, LOWEST: motor.low, HIGHEST: motor.high})
    return found


def _raw(bus: ServoBus, homing: Mapping[int, int]) -> dict[int, int]:
    """Id -> where its encoder stands, whatever offset it has."""
    return {number: (bus.read(number, POSITION) + offset) % 4096 for number, offset in homing.items()}


def _same(bus: ServoBus, plan: JointPlan, moved: Mapping[int, float]) -> None:
    """See that the servo of a joint is the one that was moved.

    Args:
        bus: for names.
        plan: the joint that a person was asked to move.
        moved: id -> how far [rad].

    Raises:
        ValueError: it is not; two servos of equal range have each other's ids, which their ranges do not show.
    """
    number = max(moved, key=lambda one: moved[one])
    if moved[number] < MOVED:
        raise ValueError(f"nobody moved {plan.name}: no servo turned by {MOVED:g} rad. Nothing was written")
    if number != plan.number:
        raise ValueError(
            f"you were asked to move {plan.name}, and {bus.call(number)} is what moved: {moved[number]:.2f} rad, and "
            f"{bus.call(plan.number)} {moved[plan.number]:.2f}. If you moved {plan.name} alone, the two have each "
            "other's ids: plug in one at a time, and robot-rl robot motors <card> set=<joint>. Nothing was written"
        )


def _judge(plan: JointPlan, middle: int, ends: tuple[int, int]) -> MotorCard:
    """What the card says of a joint.

    Raises:
        ValueError: its range is not plausible.
    """
    offset = max((middle - MIDDLE + 2048) % 4096 - 2048, -2047)
    told = (middle - offset) % 4096
    span, wanted = (ends[1] - ends[0]) * TICK, plan.upper - plan.lower
    if plan.turning:
        return MotorCard(id=plan.number, homing=offset, low=0, high=4095, zero=float(told), sign=plan.sign)
    least, most = (HANDLE if plan.gripper else NARROW) * wanted, WIDE * wanted
    if not least <= span <= most:
        more = "move it from end to end" if span < least else "see whether it is the servo of this joint"
        raise ValueError(
            f"{plan.name} was moved over {span:.2f} rad, and its range in the model is {wanted:.2f}, expected "
            f"{least:.2f} to {most:.2f}: {more}. Nothing was written"
        )
    low, high = told + ends[0], told + ends[1]
    if low < 0 or high > 4095:
        raise ValueError(
            f"{plan.name} was not near the middle of its range at the begin: from there it goes {ends[0] * TICK:.2f} "
            f"and {ends[1] * TICK:.2f} rad, and one servo turn has to hold both; begin again. Nothing was written"
        )
    scale = wanted / span if plan.gripper else 1.0
    zero = 0.5 * (low + high) - plan.sign * 0.5 * (plan.lower + plan.upper) / (scale * TICK)
    return MotorCard(
        id=plan.number, homing=offset, low=low, high=high, zero=round(zero, 2), sign=plan.sign, scale=round(scale, 4)
    )


@contextlib.contextmanager
def _put_back(bus: ServoBus, numbers: Sequence[int]) -> Iterator[None]:
    """Registers as they were, where the block fails."""
    kept: list[Register] = [*SETTINGS, *GENTLE, HOMING, LOWEST, HIGHEST]
    before = {number: {register: bus.read(number, register) for register in kept} for number in numbers}
    try:
        yield
    except BaseException:
        for number, values in before.items():
            with contextlib.suppress(ServoError):
                bus.write_lasting(number, values)
        raise
