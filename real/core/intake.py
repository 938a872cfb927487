"""The door for commands from the network: who may speak, what is accepted, and which command is due now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import NamedTuple

import numpy as np

from robot_rl.real.core.alignment import SourceClock
from robot_rl.real.core.chunk_player import ChunkPlayer, play_effort, play_velocity
from robot_rl.real.core.limiter import wrap
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import EFFORT, FIELDS, POSITION, RobotSpec
from robot_rl.real.core.watchdogs import Burst
from robot_rl.real.robot import Command
from robot_rl.types.options import Options, Positive

SOURCES = ("external", "policy", "human")  # rising priority
HORIZON = 5.0
"""Longest chunk [s]."""


class DoorOptions(Options):
    """Who may speak to a robot over the network, and for how long what was said counts."""

    allow_external: bool = False
    """Accept foreign clients."""
    teleop_timeout: Positive = 0.25
    """Largest age of a human's command [s]."""
    takeover_timeout: Positive = 0.3
    """Largest age of the operator's dead-man heartbeat [s]."""
    external_timeout: Positive | None = None
    """How long the step of a foreign client stays fresh [s]; null: the command timeout."""
    external_align: bool = False
    """Let foreign steps begin far from the robot and approach them at the limiter's speed."""


DOOR = DoorOptions()


@dataclass(frozen=True)
class CommandMessage:
    """One message on a command topic, still as it came.

    Args:
        source: `policy`, `human` or `external`.
        tag: identity of the sender; a new one starts its own sequence.
        seq: running number of the sender; 0 with stamp 0 for foreign clients that have none.
        names: joints, in the sender's order.
        stamp: of the observation the command was computed from [s of the sender's clock]; 0 = none.
        times: (n,) seconds after the stamp, > 0 and increasing; n = 1 a step, n > 1 a chunk, n = 0 "let go".
        fields: name -> (n, J); exactly one of `positions`, `velocities`, `effort`.
        sender: endpoint that published it, where the transport tells; two processes may use one tag.
        offset: our steady clock minus the sender's [s] where that needs no estimate (one host), else nan.
    """

    source: str
    tag: str
    seq: int
    names: tuple[str, ...]
    stamp: float
    times: np.ndarray
    fields: dict[str, np.ndarray]
    sender: str = ""
    offset: float = nan


class Content(NamedTuple):
    """What a message holds, and what is wrong with it whoever sent it and whenever it came.

    Args:
        flaw: of names, fields and numbers, "" where there is none.
        misfit: of the times, "" where there is none.
        rows: (n, J) numbers in the order of the RobotSpec.
        times: (n,) seconds after the stamp.
    """

    flaw: str
    misfit: str
    rows: np.ndarray
    times: np.ndarray


class _Plan(NamedTuple):
    trace: str  # "<tag>/<seq>" of the message
    seq: int
    stamp: float  # on our clock
    times: np.ndarray  # of a chunk: absolute, on our clock
    knots: np.ndarray
    chunk: bool  # played as a motion through its knots, not taken as a step


class Intake:
    """Accepts command messages, arbitrates between their sources and plays chunks.

    Call `offer` per message, `select` once per tick before the supervisor's `filter`, and `note_executed` after it.

    Args:
        spec: of the robot.
        settings: of the supervisor.
        options: who may speak.

    Attributes:
        authority: who is followed: `none`, `external`, `policy` or `human`.
        trace: `<tag>/<seq>` of the command followed last.
        mismatch: whether the newest command of a source could not begin, too far from the robot.
        replaced: chunks that have taken over from a running one, so far.
        doubled: source -> when two senders were last heard in turn [s].
        dropped: reason -> messages.

    Source: specification of the bridge, message acceptance and authority.
    """

    def __init__(
        self,
        spec: RobotSpec,
        settings: SafetySettings | None = None,
        options: DoorOptions = DOOR,
    ) -> None:
        self._spec, self._set = spec, settings or SafetySettings()
        self._direct = spec.mode != POSITION  # velocities, efforts, twists: nothing to begin near, nothing to splice
        self._play = play_effort if spec.mode == EFFORT else play_velocity
        self._sources = SOURCES if options.allow_external else SOURCES[1:]
        self._machines = [name for name in reversed(self._sources) if name != "human"]
        self._teleop_timeout, self._takeover_timeout = options.teleop_timeout, options.takeover_timeout
        period = 1.0 / self._set.rate
        self._floods = {name: Burst(int(5 * self._set.rate)) for name in SOURCES}
        self._drops = {name: Burst(10) for name in SOURCES}
        self._clocks = {name: SourceClock(future_tolerance=self._set.future_tolerance) for name in SOURCES}
        self._players = {name: ChunkPlayer(len(spec.joints), period=period, horizon=HORIZON) for name in SOURCES}
        self._plans: dict[str, _Plan | None] = dict.fromkeys(SOURCES)
        self._last_seq: dict[str, int] = {}
        self._voice: dict[str, tuple[str, float]] = {}  # source -> its sender, and when it was heard
        self._second: dict[str, float] = {}  # source -> when another sender spoke beside it
        self.doubled: dict[str, float] = {}
        self._period = period
        self._speed = spec.array("velocity")
        external = options.external_timeout
        self._external_timeout = self._set.command_timeout if external is None else external
        self._align = options.external_align
        self._easing = False
        self.trace = ""
        self._releasing = ""
        self.mismatch = False
        self.replaced = 0
        self._held_at = -inf
        self._takeover = False
        self._position = np.zeros(len(spec.joints))
        self._turning = np.array(spec.turning) & (spec.mode == POSITION)
        self._own = np.zeros(len(spec.joints))
        self.authority = "none"
        self.dropped: Counter[str] = Counter()

    def read(self, message: CommandMessage) -> Content:
        """Look at what a message holds, which may be done as it comes, in any thread."""
        names, own, n = message.names, self._spec.names, len(message.times)
        rows, times = np.zeros((0, len(own))), np.asarray(message.times, float)
        if n == 0:
            return Content("", "", rows, times)
        if names != own and (len(names) != len(own) or set(names) != set(own)):
            return Content("joint_names", "", rows, times)
        if tuple(message.fields) != (FIELDS[self._spec.mode],):
            return Content("field", "", rows, times)
        rows = np.asarray(next(iter(message.fields.values())), float)
        if rows.shape != (n, len(own)) or n > 1000:
            return Content("lengths", "", rows, times)
        step = n == 1  # a few numbers, looked at faster one by one than as arrays
        if not (all(map(isfinite, rows[0].tolist())) if step else np.isfinite(rows).all()):
            return Content("not_finite", "", rows, times)
        if names != own:
            rows = rows[:, [names.index(name) for name in own]]
        first, last = float(times[0]), float(times[-1])
        misfit = ""
        if not (first > 0.0 and isfinite(last) and (step or (np.diff(times) > 0.0).all())):
            misfit = "times"  # an increasing row that ends finite and begins above 0 is finite
        elif last > HORIZON:
            misfit = "horizon"
        return Content("", misfit, rows, times)

    def offer(self, message: CommandMessage, arrival: float, content: Content | None = None) -> str:
        """Take one message.

        Args:
            message: as it came.
            arrival: time of receipt [s of the steady clock].
            content: of `read`; None: it is read here.

        Returns:
            "" when accepted, else the reason of the drop, which is counted in `dropped`.
        """
        reason = self._offer(message, arrival, self.read(message) if content is None else content)
        if message.source in self._floods and self._floods[message.source].add(arrival) and not reason:
            reason = "flood"
        if reason:
            self.dropped[reason] += 1
            if message.source in self._drops:
                self._drops[message.source].add(arrival)
        return reason

    def takeover(self, held: bool, arrival: float) -> None:
        """Heartbeat of the operator's dead-man switch."""
        self._takeover, self._held_at = held, arrival

    def drop(self, source: str) -> None:
        """Forget what a source wanted; its next message starts anew."""
        self._plans[source] = None

    def rest(self) -> None:
        """Nobody may move the robot: forget what all sources want, so that enabling it executes nothing from before."""
        for source in SOURCES:
            self._plans[source] = None
            self._floods[source].clear()
            self._drops[source].clear()
        self.authority, self._releasing = "none", ""

    def drop_all(self) -> None:
        """Forget all plans and clock offsets, e.g. when simulated time has jumped."""
        for source in SOURCES:
            self._plans[source] = None
            self._clocks[source].reset()

    def adopt(self, settings: SafetySettings, timeouts: Mapping[str, float]) -> None:
        """Take over changed timeouts [s]: those of the settings, `teleop_timeout` and `takeover_timeout`."""
        self._set = settings
        self._teleop_timeout = timeouts.get("teleop_timeout", self._teleop_timeout)
        self._takeover_timeout = timeouts.get("takeover_timeout", self._takeover_timeout)

    def select(self, now: float) -> tuple[Command | None, str]:
        """Command of whoever has authority at `now` [s].

        Returns:
            The command (empty value: brake and hold; None: nothing from anybody) and the reason for a soft stop:
            `cmd_flood`, `cmd_drops`, `takeover_silent`, or "".
        """
        before, self.mismatch = self.authority, False
        silent = self._takeover and now - self._held_at > self._takeover_timeout
        if silent:
            self.authority = "none"
            return None, "takeover_silent" if before == "human" else ""
        if before in self._floods:
            for burst, reason in ((self._floods[before], "cmd_flood"), (self._drops[before], "cmd_drops")):
                if burst.full(now):
                    burst.clear()
                    self._plans[before] = None
                    return None, reason
        if self._takeover:
            self._grant("human", now)
            return self._due("human", now) or self._let_go("human", now), ""
        for name in self._machines:
            plan = self._plans[name]
            if plan is None:
                if name == before and self._releasing == name:  # it said so: not a command that got lost
                    self._releasing = ""
                    return self._let_go(name, now), ""
                continue
            if before != name and not self._joins(name, plan, now):
                self.authority, self.mismatch = "none", True
                return self._let_go(name, now), ""
            self._grant(name, now)
            return self._due(name, now), ""
        if before == "human":
            self.authority = "none"
            return self._let_go("human", now), ""
        return None, ""

    def note_executed(self, now: float, position: np.ndarray, velocity: np.ndarray, *, as_asked: bool) -> None:
        """Tell what was sent at `now` [s]: (J,) position and velocity of the command; clipping re-seeds the player.

        Both arrays are kept, so nobody writes into them afterwards.
        """
        self._position, self._own = position, velocity
        if as_asked or self.authority == "none":
            return  # who is not followed begins anew when he is
        player, plan = self._players[self.authority], self._plans[self.authority]
        player.reseed(now, self._position, self._own)
        if plan is not None and plan.chunk and not self._direct:
            player.offer(now, plan.times, plan.knots)

    # ------------------------------------------------------------ acceptance

    def _sole(self, source: str, sender: str, arrival: float) -> bool:
        """Whether this sender is the one that speaks for its source; another may begin once it has fallen silent."""
        first, heard = self._voice.get(source, (sender, arrival))
        if sender != first and arrival - heard <= self._set.command_timeout:
            self._second[source] = arrival
            return False
        if sender == first and arrival - self._second.get(source, -inf) <= self._set.command_timeout:
            self.doubled[source] = arrival  # the first is not dead: two drive in turn
        if sender != first:
            self._clocks[source].reset()  # another sender, another clock
        self._voice[source] = sender, arrival
        return True

    def _offer(self, message: CommandMessage, arrival: float, content: Content) -> str:
        source, foreign = message.source, message.source == "external"
        if source not in self._sources:
            return "source"
        if not self._sole(source, message.sender or message.tag, arrival):
            return "second_sender"
        if content.flaw:
            return content.flaw
        if not isfinite(message.stamp) or (message.stamp == 0.0 and not foreign):
            return "stamp"
        stamping = self._clocks[source].arrive(arrival, message.stamp, known=message.offset)
        if stamping.fault and not foreign:
            return "stamp"
        if content.misfit:
            return content.misfit
        if not foreign and arrival - stamping.time > self._set.command_timeout:
            return "stale"
        if not foreign and message.seq <= self._last_seq.get(message.tag, -1):
            return "sequence"
        self._last_seq[message.tag] = message.seq
        times = content.times
        if not len(times):
            self._plans[source] = None
            self._releasing = source
            self._players[source].reseed(arrival, self._position, self._own)
            return ""
        trace = f"{message.tag.split(':', 1)[-1]}/{message.seq}"
        # a foreign trajectory of one point says when to be there: it is a motion, not a step
        chunk = len(times) > 1 or (foreign and bool(times[0] > self._external_timeout + 1e-9))
        due = stamping.time + times if chunk else times
        plan = _Plan(trace, message.seq, stamping.time, due, self._near(content.rows), chunk)
        return self._keep(source, plan, arrival)

    def _near(self, rows: np.ndarray) -> np.ndarray:
        """(n, J) the same places, each joint that turns for ever the short way from the one before."""
        if not self._turning.any():
            return rows
        steps = np.diff(rows, axis=0, prepend=self._position[None])
        return np.where(self._turning, self._position + np.cumsum(wrap(steps), axis=0), rows)

    def _keep(self, source: str, plan: _Plan, arrival: float) -> str:
        if plan.chunk:
            if len(plan.times) == 1 and not self._direct:
                plan = self._motion(plan, arrival)
            if plan.times[-1] <= arrival + self._period:
                return "chunk_late"
            if not self._direct and source == self.authority:
                refused = self._players[source].offer(arrival, plan.times, plan.knots)
                if refused:
                    return "chunk_late" if refused == "chunk too late" else "chunk"
                self.replaced += self._plans[source] is not None
        self._plans[source] = plan
        return ""

    def _motion(self, plan: _Plan, arrival: float) -> _Plan:
        """From the present command to the only point of a plan, at rest at both ends (quintic, sampled)."""
        share = np.linspace(0.0, 1.0, 21)[1:]
        smooth = share**3 * (10.0 - 15.0 * share + 6.0 * share**2)
        times = arrival + share * (plan.times[0] - arrival)
        knots = self._position + smooth[:, None] * (plan.knots[0] - self._position)
        return plan._replace(times=times, knots=knots)

    # ------------------------------------------------------------ authority

    def _joins(self, name: str, plan: _Plan, now: float) -> bool:
        """A source may begin only where the robot's command is; a foreign trajectory also where it can be in time."""
        if self._direct:
            return True
        reach = np.full(len(self._position), self._set.start_tolerance)
        if name == "external" and plan.chunk:
            reach = reach + self._speed * max(plan.times[0] - now, 0.0)
        elif name == "external" and self._align:
            reach[:] = inf
        return bool((np.abs(plan.knots[0] - self._position) <= reach).all())

    def _grant(self, name: str, now: float) -> None:
        if self.authority == name:
            return
        self.authority, self._easing = name, name == "external" and self._align
        self._players[name].reseed(now - self._period, self._position, self._own)
        plan = self._plans[name]
        if plan is not None and plan.chunk and not self._direct:
            self._players[name].offer(now, plan.times, plan.knots)

    def _due(self, name: str, now: float) -> Command | None:
        plan = self._plans[name]
        if plan is None:
            return None
        self.trace = plan.trace
        if not plan.chunk:
            if name == "external":
                if now > plan.stamp + self._external_timeout:
                    self._plans[name] = None
                    return self._let_go(name, now)
                if self._easing and not self._direct:  # begin where the robot is; the limiter does the approach
                    self._easing = False
                    return Command(now, self._position.copy(), name, plan.seq)
                return Command(now, plan.knots[0], name, plan.seq)
            patience = self._teleop_timeout if name == "human" else self._set.command_timeout
            if now - plan.stamp > patience:
                self._plans[name] = None
                return None
            grace = patience - self._set.command_timeout
            return Command(min(plan.stamp + max(grace, 0.0), now), plan.knots[0], name, plan.seq)
        if self._direct:
            if now > plan.times[-1]:
                self._plans[name] = None
                return self._let_go(name, now)
            return Command(now, self._play(now, plan.times, plan.knots), name, plan.seq)
        setpoint = self._players[name].at(now)
        if setpoint.underrun:
            self._plans[name] = None
            return self._let_go(name, now)
        return Command(now, setpoint.position, name, plan.seq)

    def _let_go(self, name: str, now: float) -> Command:
        return Command(now, np.zeros(0), name)
