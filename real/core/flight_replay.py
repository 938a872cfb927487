"""A flight's supervisor again: a fresh one, told the same at the same times, has to say the same bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from robot_rl.data.exact import pack
from robot_rl.data.flight_read import AlteredFlight, Record
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import JointSpec, RobotSpec, SpecError
from robot_rl.real.core.supervisor import SafetySupervisor
from robot_rl.real.robot import Command, Level, RobotState, Verdict
from robot_rl.types.option_words import near

OF_JOINTS = tuple(item.name for item in fields(JointSpec) if str(item.type).startswith("float"))
"""Limits of a joint that can be changed."""
OF_ROBOT = ("margin", "force", "dead_time")
OF_SETTINGS = tuple(item.name for item in fields(SafetySettings) if str(item.type) in ("float", "int"))

Forward = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Changes:
    """What would be otherwise than in the flight.

    Args:
        spec: another robot, with as many joints.
        limits: limit -> number: of every joint, of a joint as `<joint>.<limit>`, of the robot (`margin`, `force`,
            `dead_time`), or a setting.
        commands: number of an offer, from 0 -> (J,) what another policy commands in its place.
    """

    spec: RobotSpec | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    commands: Mapping[int, np.ndarray] = field(default_factory=dict)


NOTHING = Changes()


@dataclass(frozen=True)
class Difference:
    """Where a replay leaves the flight for the first time.

    Args:
        tick: number of the tick, from 0; of a call between ticks that of the next one.
        when: [s after the first tick].
        what: `command`, `verdict`, or the name of a call.
        recorded: in words.
        replayed: in words.
    """

    tick: int
    when: float
    what: str
    recorded: str
    replayed: str


@dataclass
class Comparison:
    """A supervisor against its recording.

    Attributes:
        ticks: replayed.
        calls: between them: enable, e-stop, reports and so on.
        others: ticks in which command or verdict are not the same, and calls with another answer.
        first: the first of them.
        largest: largest difference of a command, in its own unit.
        at: tick and joint of the largest one.
        clipped: ticks cut to a limit, in the flight and in the replay.
        faults: code -> tick in which it was first told as the cause, in the flight and in the replay.
    """

    ticks: int = 0
    calls: int = 0
    others: int = 0
    first: Difference | None = None
    largest: float = 0.0
    at: tuple[int, str] = (0, "")
    clipped: tuple[int, int] = (0, 0)
    faults: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))

    @property
    def same(self) -> bool:
        """Whether everything was the same, bit for bit."""
        return self.others == 0


def change_limits(
    spec: RobotSpec, settings: SafetySettings, limits: Mapping[str, float]
) -> tuple[RobotSpec, SafetySettings]:
    """A robot and settings with other limits.

    Raises:
        ValueError: a limit that there is not, or a number that it cannot be.
    """
    joints = {joint.name: joint for joint in spec.joints}
    of_robot, of_settings = {}, {}  # all at once: two may be right only together
    for name, value in limits.items():
        joint, dot, limit = name.rpartition(".")
        if dot and joint in joints and limit in OF_JOINTS:
            joints[joint] = replace(joints[joint], **{limit: float(value)})
        elif name in OF_JOINTS:
            joints = {key: replace(item, **{name: float(value)}) for key, item in joints.items()}
        elif name in OF_ROBOT:
            of_robot[name] = float(value)
        elif name in OF_SETTINGS:
            of_settings[name] = type(vars(settings)[name])(value)
        else:
            raise ValueError(
                f"limits.{name} is no limit of this robot{near(name, (*OF_JOINTS, *OF_ROBOT, *OF_SETTINGS))} (of one "
                f"joint: limits.{spec.names[0]}.velocity=…)"
            )
    return replace(spec, joints=tuple(joints.values()), **of_robot), replace(settings, **of_settings)


class SupervisorReplay:
    """Feeds the records of flights to fresh supervisors, one after another.

    Args:
        make_forward: fact `model` of the flight -> its forward kinematics; called where the robot has a workspace.
    """

    def __init__(self, make_forward: Callable[[Mapping[str, Any]], Forward] | None = None) -> None:
        self.result = Comparison()
        self._make_forward = make_forward

    def run(self, records: Iterable[Record], changes: Changes = NOTHING) -> Comparison:
        """All records of a flight.

        Args:
            records: of the flight.
            changes: what would be otherwise.

        Raises:
            AlteredFlight: a record that no supervisor wrote.
            ValueError: changes that do not fit the robot.
        """
        self._changes = changes
        self._model: Mapping[str, Any] | None = None
        self._safety: SafetySupervisor | None = None
        self._begin: int | None = None
        self._offers = 0
        self._commands: dict[int, np.ndarray] = {}  # sequence number of the policy's message -> another's command
        for record in records:
            if self._begin is None and record.topic == "tick":
                self._begin = record.when
            if record.topic in ("facts", "call", "tick", "offer"):
                when = 1e-9 * (record.when - self._begin) if self._begin is not None else 0.0
                try:
                    self._take(record.topic, record.value, when)
                except (TypeError, IndexError, KeyError) as error:
                    raise AlteredFlight(f"a record of the topic {record.topic} makes no sense: {error}") from error
        return self.result

    def _take(self, topic: str, value: Any, when: float) -> None:
        if topic == "facts":
            if value["of"] == "model":
                self._model = value
            elif value["of"] == "supervisor":
                self._safety = self._make(value)
        elif topic == "offer":
            self._keep_offer(value)
        elif self._safety is None:
            raise AlteredFlight("a call of a supervisor stands before the facts that it was made with")
        elif topic == "tick":
            self._tick(self._safety, value, when)
        else:
            self._call(self._safety, value, when)

    def _make(self, facts: Mapping[str, Any]) -> SafetySupervisor:
        spec, settings = RobotSpec.from_dict(facts["spec"]), SafetySettings(**facts["settings"])
        other = self._changes.spec
        if other is not None and (len(other.joints) != len(spec.joints) or other.mode != spec.mode):
            raise SpecError(
                f"{other.name} has {len(other.joints)} joints in {other.mode} mode, and the flight is of {spec.name} "
                f"with {len(spec.joints)} in {spec.mode} mode; take a card of the same joints"
            )
        spec, settings = change_limits(other or spec, settings, self._changes.limits)
        forward: Forward | None = None
        if spec.workspace is not None and self._make_forward is not None:
            if self._model is None:
                raise AlteredFlight("the robot has a workspace, and the flight does not say of which model")
            forward = self._make_forward(self._model)
        return SafetySupervisor(spec, settings, forward=forward)

    def _keep_offer(self, value: Any) -> None:
        """Another policy's command in place of the one in this message, from now on."""
        _, _, seq, *_ = _parts(value, 3)[0]
        if self._offers in self._changes.commands:
            self._commands[seq] = self._changes.commands[self._offers]
        self._offers += 1

    def _tick(self, safety: SafetySupervisor, value: Any, when: float) -> None:
        now, command, state, sent, verdict = _parts(value, 5)
        asked = Command(*command) if isinstance(command, tuple) else command
        if isinstance(asked, Command) and asked.source == "policy" and asked.seq in self._commands:
            asked = asked._replace(value=self._commands[asked.seq])
        said = safety.filter(asked, RobotState(*state) if isinstance(state, tuple) else state, now)
        before, after = (Command(*sent), Verdict(Level(verdict[0]), *verdict[1:])), said
        self._count(before[1], after[1])
        if pack(before) != pack(after):
            self._differ(safety, before, after, when)
        self.result.ticks += 1

    def _count(self, *verdicts: Verdict) -> None:
        r = self.result
        cut = [verdict.level is Level.CLIPPED for verdict in verdicts]
        r.clipped = r.clipped[0] + cut[0], r.clipped[1] + cut[1]
        for found, verdict in zip(r.faults, verdicts):
            if verdict.fault:
                found.setdefault(verdict.fault, r.ticks)

    def _differ(
        self, safety: SafetySupervisor, before: tuple[Command, Verdict], after: tuple[Command, Verdict], when: float
    ) -> None:
        r = self.result
        r.others += 1
        way = np.abs(np.asarray(after[0].value, float) - np.asarray(before[0].value, float))
        if way.size and np.nanmax(way, initial=0.0) > r.largest:
            r.largest, r.at = float(np.nanmax(way)), (r.ticks, safety.spec.names[int(np.nanargmax(way))])
        if r.first is None:
            part = 0 if pack(before[0]) != pack(after[0]) else 1
            words = [tell_command(one[0]) if part == 0 else tell_verdict(one[1]) for one in (before, after)]
            r.first = Difference(r.ticks, when, ("command", "verdict")[part], *words)

    def _call(self, safety: SafetySupervisor, value: Any, when: float) -> None:
        name, arguments, recorded = _parts(value, 3)
        own = {key: number for key, number in self._changes.limits.items() if key in OF_SETTINGS}
        calls: dict[str, Callable[..., list[str] | None]] = {
            "enable": safety.enable,
            "rearm": safety.rearm,
            "estop": lambda source, pressed: safety.estop(source, pressed=pressed),
            "adopt": lambda settings: safety.adopt(SafetySettings(**{**settings, **own})),
            "report": safety.report,
            "hinder": safety.hinder,
            "soft_stop": safety.soft_stop,
            "shutdown": safety.shutdown,
        }
        if name not in calls:
            raise AlteredFlight(f"{name!r} is no call of a supervisor")
        result = calls[name](*arguments)
        self.result.calls += 1
        said = None if result is None else tuple(result)
        if said != recorded:
            self.result.others += 1
            if self.result.first is None:
                words = [", ".join(one or ()) or "done" for one in (recorded, said)]
                self.result.first = Difference(self.result.ticks, when, name, *words)


def _parts(value: Any, count: int) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(value) != count:
        raise AlteredFlight(f"a record that holds {value!r} makes no sense, expected {count} values")
    return value


def tell_command(command: Command) -> str:
    """The numbers of a command, all digits."""
    gains = "" if command.gains is None else f" gains {np.asarray(command.gains).tolist()}"
    return f"{np.asarray(command.value).tolist()}{gains}"


def tell_verdict(verdict: Verdict) -> str:
    """A verdict in one line."""
    why = f" ({', '.join(verdict.reasons)})" if verdict.reasons else ""
    return f"{verdict.level.name} in {verdict.state}{why}" + (f", fault {verdict.fault}" if verdict.fault else "")
