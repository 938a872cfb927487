"""Everything between the command topics and the robot, without ROS: door, watchdogs, supervisor, and what is reported.

A node feeds events as they come (any thread) and calls `tick` once per period with the newest state.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from math import isfinite
from typing import NamedTuple

import numpy as np

from robot_rl.data.flight import FlightWriter
from robot_rl.real.core.auto_arm import AutoArm
from robot_rl.real.core.flight import RecordedSupervisor
from robot_rl.real.core.intake import CommandMessage, Content, DoorOptions, Intake
from robot_rl.real.core.machine import ACTIVE, ARMED, IDLE, LATCHED, MOVABLE, STOPPING
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import TWIST, RobotSpec
from robot_rl.real.core.supervisor import SafetySupervisor
from robot_rl.real.core.watchdogs import Watchdogs
from robot_rl.real.robot import CLIPPED, HOLD, OK, STOP, RobotState, Verdict
from robot_rl.types.options import NotNegative, Positive

HEARTBEAT = "estop_heartbeat"
BRAKING = (STOPPING, *LATCHED)


class Controller(NamedTuple):
    """What is known of the robot's command topic and of who else speaks.

    Args:
        subscribers: controllers that listen.
        rivals: other publishers on the command topic, by name.
        strangers: publishers on `command/*` with an unexpected node name.
        problem: why the controller does not fit the RobotSpec, or is not known to; "" when it fits.
        status: what the robot's own driver says that stands against motion.
    """

    subscribers: int = 1
    rivals: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    problem: str = ""
    status: tuple[str, ...] = ()

    def objections(self, topic: str) -> list[tuple[str, str]]:
        """What stands against motion: (fault that it is while the robot may move, "" for none; words).

        Args:
            topic: of the commands.
        """
        found = []
        if self.subscribers == 0:
            found.append(("controller_gone", f"nobody listens on {topic}"))
        elif self.subscribers > 1:
            more = "expected one controller; one whose process was killed is forgotten by discovery after some 20 s"
            found.append(("", f"{self.subscribers} subscribers on {topic}, {more}"))
        if self.problem:
            found.append(("controller_changed", self.problem))
        if self.status:
            found.append(("robot_status", "; ".join(self.status)))
        if self.rivals or self.strangers:
            found.append(("duplicate_publisher", f"duplicate publisher: {', '.join((*self.rivals, *self.strangers))}"))
        return found


CALM = Controller()
"""One controller listens, nobody else speaks, and nothing stands against motion."""


class Sent(NamedTuple):
    """Outcome of a tick.

    Args:
        value: (J,) numbers for the hardware.
        publish: whether they may be sent.
        authority: who was followed: `none`, `external`, `policy` or `human`.
        trace: `<source>/<seq>` of the command behind it.
        flags: letters: c clipped, h hold, b braking, r chunk replaced, s stale.
        verdict: of the supervisor.
        velocity: (J,) commanded [rad/s]; measured in effort mode.
        period: time over which the command moved [s], 0 when it stood.
        gains: (2, J) kp and kd of pd mode, else None.
    """

    value: np.ndarray
    publish: bool
    authority: str
    trace: str
    flags: str
    verdict: Verdict
    velocity: np.ndarray
    period: float
    gains: np.ndarray | None = None


class PipelineOptions(DoorOptions):
    """Who may speak to a robot, what is waited for, and what stops it."""

    first_message_timeout: Positive = 5.0
    """Patience for a first message before start-up reports an error [s]."""
    estop_heartbeat: NotNegative = 0.5
    """Largest age of the e-stop's heartbeat [s]; 0 = there is none. One that was heard and falls silent is an e-stop;
    one that never came blocks the robot only where it is required."""
    estop_required: bool = False
    """Nothing moves before the heartbeat has been heard."""
    auto_arm: bool = False
    """Enable with the first good command, and again after a fault; for simulation only."""


PIPELINE = PipelineOptions()


class CommandPipeline:
    """Door, watchdogs and supervisor of one robot.

    Args:
        spec: of the robot.
        settings: of the supervisor.
        options: who may speak, what is waited for, what stops it.
        forward: joint positions -> tool position, needed for a workspace.
        watched: required sensors besides the joint states: name -> largest age [s].
        start: present time [s of the steady clock].
        flight: recorder of all that comes and goes, on the same clock; None = nothing is kept.

    Source: specification of the bridge, sections on the supervisor, watchdogs and authority.
    """

    def __init__(
        self,
        spec: RobotSpec,
        settings: SafetySettings | None = None,
        options: PipelineOptions = PIPELINE,
        *,
        forward: Callable[[np.ndarray], np.ndarray] | None = None,
        watched: Mapping[str, float] | None = None,
        start: float = 0.0,
        flight: FlightWriter | None = None,
    ) -> None:
        self.spec, self.settings, self.flight = spec, settings or SafetySettings(), flight
        if flight is None:
            self.safety = SafetySupervisor(spec, self.settings, forward=forward)
        else:
            self.safety = RecordedSupervisor(spec, self.settings, flight=flight, forward=forward)
        self.auto_arm = AutoArm(self.safety) if options.auto_arm else None
        self.door = Intake(spec, self.settings, options)
        limits = {name: (timeout, "fault") for name, timeout in (watched or {}).items()}
        self._estop_required = options.estop_required
        if options.estop_heartbeat > 0.0:
            limits[HEARTBEAT] = (options.estop_heartbeat, "estop")
        self._state_name = "joint_states" if spec.mode != TWIST else "motion"
        limits[self._state_name] = (self.settings.state_timeout, "monitor")  # the state monitor reacts itself
        self.watchdogs = Watchdogs(limits)
        self.blocking: tuple[str, ...] = ()
        self.clock_faults = 0
        self._start = self._now = start
        self._first = options.first_message_timeout
        # a flood drops its own oldest only
        self._offers: deque[tuple[CommandMessage, float, Content]] = deque(maxlen=4096)
        self._events: deque[Callable[[], None]] = deque(maxlen=4096)
        self._pressed: set[str] = set()
        self._stops = threading.Lock()  # an e-stop waits for no tick and for no queue
        self._controller = Controller(subscribers=0)
        self._lock = threading.Lock()
        self._soft = ""
        self._replaced = 0
        self._told = ("", "")
        self._followed = self._clipped = 0  # ticks

    # ------------------------------------------------------------ events, from any thread

    def offer(self, message: CommandMessage, arrival: float) -> None:
        """A command has come; what it holds is looked at now, and it is judged in the next tick."""
        self._offers.append((message, arrival, self.door.read(message)))

    def takeover(self, held: bool, arrival: float) -> None:
        """Heartbeat of the operator's dead-man switch."""
        self._events.append(lambda: self.door.takeover(held, arrival))
        self._note("takeover", held)

    def estop(self, source: str, *, pressed: bool) -> None:
        """The e-stop of a source (`topic`, `service`, `button`) is pressed or released; acts at once."""
        with self._stops:
            was = bool(self._pressed)
            (self._pressed.add if pressed else self._pressed.discard)(source)
            if pressed:
                self.safety.estop(source)
            elif was and not self._pressed:
                self.safety.estop(source, pressed=False)

    def estop_once(self, source: str) -> None:
        """An e-stop without a level (a service call, a button that springs back): latches, is not held."""
        self.estop(source, pressed=True)
        self.estop(source, pressed=False)

    def alive(self, name: str, when: float) -> None:
        """Sign of life of a watched sensor or of the e-stop's heartbeat at `when` [s of the steady clock]."""
        self._events.append(lambda: self.watchdogs.feed(name, when))

    def source_lost(self, source: str) -> None:
        """The transport says that a command source has died; its plans are dropped and the robot brakes."""

        def act() -> None:
            if self.door.authority == source:
                self._soft = "source_lost"
            self.door.drop(source)

        self._events.append(act)
        self._note("source_lost", source)

    def soft_stop(self, why: str) -> None:
        """Brake and hold, e.g. because simulated time has jumped."""

        def act() -> None:
            self._soft = why
            self.door.drop_all()

        self._events.append(act)
        self._note("soft_stop", why)

    def controller(self, view: Controller) -> None:
        """What the last look at the command topic has found.

        A controller that goes while the robot is stopped for good may come back as another one (other joint order,
        another place), so from then on nothing is said to it until it was asked again and the operator has reset.
        """
        before, now = self._controller.subscribers, view.subscribers
        if 0 < before != now and self.safety.state in BRAKING:
            self.safety.report("controller_gone" if now < before else "controller_changed")
        if view != self._controller:
            self._note("controller", view)
        self._controller = view

    def hinder(self, view: Controller) -> list[str]:
        """What stands against motion now: for `enable` and `reset` it counts at once, not from the next tick on.

        Returns:
            It, in words.
        """
        against = [words for _, words in view.objections(self.spec.controller_topic)]
        with self._lock:
            self.blocking = tuple(dict.fromkeys((*self.blocking, *against)))
            self.safety.hinder(self.blocking)
        return against

    def _note(self, name: str, value: object) -> None:
        """For whoever reads the flight; what came of it stands in the calls of the supervisor."""
        if self.flight is not None:
            self.flight.put("event", self._now, (name, value))

    # ------------------------------------------------------------ operator

    def enable(self, on: bool = True) -> list[str]:
        """See `SafetySupervisor.enable`."""
        if self.auto_arm is not None:
            self.auto_arm.note_request(on)
        return self.safety.enable(on)

    def reset(self) -> list[str]:
        """See `SafetySupervisor.rearm`."""
        return self.safety.rearm()

    def lower(self, timeouts: Mapping[str, float]) -> None:
        """Shorten `state_timeout`, `command_timeout`, `teleop_timeout` or `takeover_timeout` [s] while running.

        Raises:
            ValueError: a timeout that is not finite and positive; nothing has changed then.
        """
        with self._lock:
            for name, value in timeouts.items():
                if not (isfinite(value) and value > 0.0):
                    raise ValueError(f"{name} is {value}, expected finite seconds > 0")
            known = {item.name for item in fields(self.settings)}
            own = {name: value for name, value in timeouts.items() if name in known}
            self.settings = replace(self.settings, **own)
            self.safety.adopt(self.settings)
            self.door.adopt(self.settings, timeouts)

    @property
    def patient(self) -> bool:
        """Whether the patience for first messages has not run out yet, at the time of the last tick."""
        return self._now - self._start <= self._first

    def shutdown(self) -> None:
        """Brake, then publish nothing more."""
        self.safety.shutdown()

    @property
    def resting(self) -> bool:
        """Whether nothing is commanded that moves."""
        return self.safety.still

    @property
    def clip_ratio(self) -> float:
        """Share of the followed ticks that were clipped."""
        return self._clipped / max(self._followed, 1)

    # ------------------------------------------------------------ one period

    def tick(self, now: float, state: RobotState | None, *, mismatches: tuple[str, ...] = ()) -> Sent:
        """One period.

        Args:
            now: [s of the steady clock].
            state: newest state, or None before the first.
            mismatches: required topics whose quality of service keeps their sender from matching.
        """
        with self._lock:
            self._soft, self._now = "", now
            heard = False
            while self._offers:
                message, arrival, content = self._offers.popleft()
                reason = self.door.offer(message, arrival, content)
                if self.flight is not None:
                    self.flight.put("offer", arrival, (message, arrival, reason))
                self.clock_faults += reason == "stamp"
                heard |= not reason and len(message.times) > 0
            while self._events:
                self._events.popleft()()
            if state is not None:
                self.watchdogs.feed(self._state_name, state.stamp)
            self._watch(now, mismatches)
            if self.auto_arm is not None:
                self.auto_arm.tick(heard)
            command, why = self.door.select(now)
            if why or self._soft:
                self.safety.soft_stop()
            self.safety.stand()
            out, verdict = self.safety.filter(command, state, now)
            if self.door.mismatch and verdict.state == ARMED:
                verdict = verdict._replace(reasons=tuple(dict.fromkeys((*verdict.reasons, "start_mismatch"))))
            authority = self.door.authority if verdict.state == ACTIVE else "none"
            flags = self._flags(verdict)
            if verdict.publish or verdict.state == IDLE:  # at rest plans begin from where the robot is
                limiter = self.safety.limiter
                self.door.note_executed(now, limiter.position, limiter.velocity, as_asked=verdict.level is OK)
            trace = self.door.trace if authority != "none" else "supervisor/0"
            if verdict.state not in MOVABLE:
                self.door.rest()
            if self.flight is not None and (authority, flags) != self._told:  # the trace stands in the command
                self._told = authority, flags
                self.flight.put("sent", now, (authority, trace, flags))
            return Sent(out.value, verdict.publish, authority, trace, flags, verdict, *self.safety.motion, out.gains)

    def overdue(self, now: float) -> list[str]:
        """Inputs that have been silent for too long, as sentences; one that never came is waited for a while first."""
        waits = now - self._start <= self._first
        return [
            f"{name} silent for {age:.2f} s" if isfinite(age) else f"{name} never came"
            for name, _, _, age in self.watchdogs.late(now)
            if isfinite(age) or not (waits or (name == HEARTBEAT and not self._estop_required))
        ]

    def _watch(self, now: float, mismatches: tuple[str, ...]) -> None:
        blocking: list[str] = [f"QoS of {topic} does not match" for topic in mismatches]
        movable = self.safety.state in MOVABLE
        late = self.watchdogs.late(now)
        if "heartbeat" in self._pressed and HEARTBEAT not in (item[0] for item in late):
            self.estop("heartbeat", pressed=False)
        for name, timeout, reaction, age in late:
            if reaction == "monitor" or (reaction == "estop" and not isfinite(age) and not self._estop_required):
                continue
            blocking.append(f"{name}: {'never came' if not isfinite(age) else f'{age:.2f} s old'}")
            if reaction == "estop" and isfinite(age):
                if "heartbeat" not in self._pressed:
                    self.estop("heartbeat", pressed=True)
            elif movable and reaction == "fault":
                self.safety.report("state_stale", f"{name} is {age:.2f} s old, allowed {timeout:g}")
        if self._controller != CALM:
            for code, words in self._controller.objections(self.spec.controller_topic):
                blocking.append(words)
                if code and movable:
                    self.safety.report(code, words)
        if self.door.doubled:
            double = [source for source, when in self.door.doubled.items() if now - when <= 1.0]
            if double:
                blocking.append(f"two senders speak in turn as {', '.join(double)}; end one of them")
                if movable:
                    self.safety.report("duplicate_source", blocking[-1])
        if tuple(blocking) != self.blocking:
            self.blocking = tuple(blocking)
            self.safety.hinder(self.blocking)

    def _flags(self, verdict: Verdict) -> str:
        level, clipped = verdict.level, verdict.level is CLIPPED
        flags = "c" if clipped else ""
        if verdict.state == ACTIVE:
            self._followed += 1
            self._clipped += clipped
        if level is HOLD or level is STOP:
            flags += "h"
        if verdict.state in BRAKING and not self.resting:
            flags += "b"
        if self.door.replaced != self._replaced:
            self._replaced = self.door.replaced
            flags += "r"
        if "stale_command" in verdict.reasons or "stale_state" in verdict.reasons:
            flags += "s"
        return flags
