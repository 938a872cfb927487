"""Twenty kinds of incidents of a robot with a policy, a person and bad luck, on a clock that is turned by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from robot_rl.data.flight import FlightWriter
from robot_rl.real.core.clock import ManualClock
from robot_rl.real.core.intake import CommandMessage
from robot_rl.real.core.pipeline import CommandPipeline, Controller, PipelineOptions
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import FIELDS, RobotSpec
from robot_rl.real.fake_robot import FakeOptions, FakeRobot
from robot_rl.real.robot import Command, RobotState, StaleState

CYCLE, EVENT, CLEAR, RESET, ENABLE = 3.6, 1.2, 1.9, 2.7, 2.75
"""Seconds: of one round, and within it when the incident begins, its cause is gone, somebody resets and enables."""


def robot(mode: str = "jtc") -> RobotSpec:
    joint = {"velocity": 1.0, "acceleration": 5.0, "effort": 10.0, "lower": -2.0, "upper": 2.0}
    joints = [{"name": f"j{i}", **joint} for i in range(6)] + [
        {"name": "j6", "continuous": True, "velocity": 2.0, "acceleration": 8.0, "effort": 5.0}
    ]
    late = {} if mode == "jtc" else {"controller_timeout": 0.1, "dead_time": 0.02}
    return RobotSpec.from_dict({"name": "arm", "joints": joints, "command_mode": mode, **late})


class Cell:
    """A robot, its pipeline and all who speak to it; `tick` is one period of 10 ms.

    Attributes:
        amplitude: of the policy's way [rad], or of what else it commands.
        policy: whether it speaks.
        human: whether a person's hands do; `held` whether they hold the switch.
        beat: whether the e-stop's heart beats.
        alter: state -> what arrives of it.
    """

    def __init__(self, path: Path, seed: int, mode: str = "jtc") -> None:
        self.spec, self.rng = robot(mode), np.random.default_rng(seed)
        self.clock = ManualClock(100.0 + self.rng.random())
        self.flight = FlightWriter(path, clock=self.clock.now)
        self.robot = FakeRobot(self.spec, FakeOptions(physics_dt=0.005, noise=1e-5), clock=self.clock, seed=seed + 1)
        self.pipe = CommandPipeline(
            self.spec,
            SafetySettings(),
            PipelineOptions(allow_external=True),
            start=self.clock.now(),
            flight=self.flight,
        )
        self.pipe.controller(Controller(1))
        self.amplitude, self.policy, self.human, self.held, self.beat = 0.8, True, False, False, True
        self.points = 1
        self.alter: Callable[[RobotState], RobotState | None] = lambda state: state
        self.value: Callable[[np.ndarray], np.ndarray] = lambda value: value
        self._seq, self.states, self.faults = 0, set(), set()
        self.begin = self._from = self.clock.now()
        self._origin = np.zeros(7)

    def enable(self) -> None:
        """Enable the robot; whoever drives begins where it stands."""
        if self.pipe.safety.state == "IDLE":
            self._from = self.clock.now()
            self._origin = np.clip(self.robot.position, -1.0, 1.0) if self.spec.mode == "position" else np.zeros(7)
        self.pipe.enable()

    def tick(self, dt: float | None = None) -> None:
        now = self.clock.advance(0.01 + 1e-4 * self.rng.standard_normal() if dt is None else dt)
        if self.beat:
            self.pipe.alive("estop_heartbeat", now)
        if self.policy:
            self.speak("policy", now, self.points)
        if self.held:
            self.pipe.takeover(True, now)
        if self.human:
            self.speak("human", now, 1)
        try:
            state = self.alter(self.robot.read())
        except StaleState:
            state = None
        sent = self.pipe.tick(now, state)
        self.states.add(sent.verdict.state)
        self.faults |= set(self.pipe.safety.faults)
        if sent.publish:
            self.robot.write(Command(now, sent.value))

    def speak(self, source: str, now: float, points: int) -> None:
        self._seq += 1
        times = 0.01 * np.arange(1, points + 1)
        if points > 1 and self._seq % 5:
            return
        phase, speed = np.arange(7.0), 1.2 if source == "human" else 0.9
        gone = np.sin(speed * (now - self._from + times[:, None]) + phase) - np.sin(phase)
        way = self._origin + self.amplitude * gone
        message = CommandMessage(
            source,
            f"{source}:p",
            self._seq,
            self.spec.names,
            now - 0.002,
            times,
            {FIELDS[self.spec.mode]: self.value(way)},
        )
        self.pipe.offer(message, now - 0.001)

    def run(self, seconds: float, incident: str) -> None:
        """Rounds of the same incident until the time is over; then the flight is closed."""
        start, clear = INCIDENTS[incident]
        plan: list[tuple[float, Callable[[Cell], object]]] = []
        while self.clock.now() - self.begin < seconds:
            if not plan:
                zero = self.clock.now() + 0.2 * self.rng.random()
                plan = [
                    (zero + 0.6, Cell.enable),
                    (zero + EVENT, start),
                    (zero + CLEAR, clear),
                    (zero + RESET, lambda cell: cell.pipe.reset()),
                    (zero + ENABLE, Cell.enable),
                    (zero + CYCLE, lambda cell: None),
                ]
            while plan and self.clock.now() >= plan[0][0]:
                plan.pop(0)[1](self)
            self.tick()
        self.flight.close(60.0)


def put(**values: object) -> Callable[[Cell], None]:
    def act(cell: Cell) -> None:
        for name, value in values.items():
            setattr(cell, name, value)

    return act


def freeze(cell: Cell) -> None:
    """The driver says the same numbers under new stamps."""
    last = cell.robot.read()
    cell.alter = lambda state: RobotState(state.stamp, last.position, last.velocity)


def still(state: RobotState) -> RobotState:
    return state


def broken(state: RobotState) -> RobotState:
    return RobotState(state.stamp, np.full(7, np.nan), state.velocity)


def leap(state: RobotState) -> RobotState:
    return RobotState(state.stamp, state.position + 1.0, state.velocity)


def stand_late(cell: Cell) -> None:
    cell.tick(0.09)


def turn_back(cell: Cell) -> None:
    cell.pipe.tick(cell.clock.now() - 5.0, cell.robot.read())


def block(cell: Cell) -> None:
    cell.robot.blocked[:3] = True


def unblock(cell: Cell) -> None:
    cell.robot.blocked[:] = False


def lower(cell: Cell) -> None:
    cell.pipe.lower({"command_timeout": 0.05, "state_timeout": 0.06})


def nothing(cell: Cell) -> None:
    pass


INCIDENTS: dict[str, tuple[Callable[[Cell], object], Callable[[Cell], object]]] = {
    "quiet": (nothing, nothing),
    "estop_pressed": (
        lambda cell: cell.pipe.estop("topic", pressed=True),
        lambda cell: cell.pipe.estop("topic", pressed=False),
    ),
    "estop_service": (lambda cell: cell.pipe.estop_once("service"), nothing),
    "heartbeat_silent": (put(beat=False), put(beat=True)),
    "state_stale": (put(alter=lambda state: None), put(alter=still)),
    "positions_frozen": (freeze, put(alter=still)),
    "state_nan": (put(alter=broken), put(alter=still)),
    "state_jump": (put(alter=leap), put(alter=still)),
    "proposals_nan": (put(value=lambda way: way * np.nan), put(value=lambda way: way)),
    "proposals_far": (put(value=lambda way: way + 50.0), put(value=lambda way: way)),
    "square_wave": (
        put(value=lambda way: np.sign(np.sin(1e6 * way)) * 1.9),
        put(value=lambda way: way),
    ),
    "policy_dies": (put(policy=False), put(policy=True)),
    "joint_blocked": (block, unblock),
    "pushed": (lambda cell: cell.robot.push(np.array([0, 3.0, 0, 0, 0, 0, 0])), nothing),
    "takeover": (put(held=True, human=True), put(held=False, human=False)),
    "takeover_hands_die": (put(held=True, human=False), put(held=False)),
    "controller_gone": (
        lambda cell: cell.pipe.controller(Controller(0)),
        lambda cell: cell.pipe.controller(Controller(1)),
    ),
    "second_publisher": (
        lambda cell: cell.pipe.controller(Controller(1, rivals=("/other",))),
        lambda cell: cell.pipe.controller(Controller(1)),
    ),
    "late_and_back": (stand_late, turn_back),
    "chunks_and_shorter_timeouts": (put(points=20), lower),
}
"""Name -> how it begins, and how its cause goes."""

MODES = {"square_wave": "forward_velocity", "policy_dies": "forward_effort"}
"""Command modes other than position."""


def record(path: Path, incident: str, seconds: float) -> Cell:
    """One flight with an incident; returns what flew."""
    cell = Cell(path, seed=list(INCIDENTS).index(incident), mode=MODES.get(incident, "jtc"))
    cell.run(seconds, incident)
    return cell
