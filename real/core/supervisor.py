"""The last thing before the robot: every command passes here, on hardware and in simulation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import inf, isfinite

import numpy as np

from robot_rl.real.core.limiter import JointLimiter, limits_of, short_way
from robot_rl.real.core.limiter_effort import EffortLimiter, Moment
from robot_rl.real.core.limiter_pd import PdLimiter
from robot_rl.real.core.machine import ACTIVE, ARMED, ESTOP, IDLE, MOVABLE, STARTUP, STOPPING, Event, SafetyMachine
from robot_rl.real.core.monitor import GONE, UNTRUSTED, StateMonitor
from robot_rl.real.core.motion import Farewell, FreezeWatch, Leash, PlaceWatch, UnderWay, farthest
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import EFFORT, PD, POSITION, VELOCITY, RobotSpec
from robot_rl.real.core.turning import differences
from robot_rl.real.core.watchdogs import Overrun
from robot_rl.real.core.workspace import WorkspaceGuard
from robot_rl.real.robot import CLIPPED, HOLD, OK, STOP, Command, Level, RobotState, Verdict


class SafetySupervisor:
    """Filters commands: limits, freshness, workspace, the robot's own state, the operator.

    The output never leaves the limits of the RobotSpec, whatever comes in; `filter` never raises. Faults latch until
    `rearm`, which never causes motion: `enable` is a second, separate act. Protective software, no safety-rated
    function: a hardware e-stop is required.

    Args:
        spec: of the robot. In a twist mode its joints are the axes of the twist; in effort mode zero effort means rest,
            so the robot's own controller has to compensate gravity.
        settings: times and tolerances.
        forward: joint positions (J,) -> tool position (3,) [m], needed when the spec has a workspace.

    Raises:
        ValueError: a mode other than position on a controller without timeout; a workspace that cannot be kept.

    Source: specification of the bridge, safety supervisor.
    """

    def __init__(
        self,
        spec: RobotSpec,
        settings: SafetySettings | None = None,
        *,
        forward: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.spec, self.settings = spec, settings or SafetySettings()
        untimed = spec.mode != POSITION and spec.controller_timeout == 0.0
        if untimed and not self.settings.allow_untimed_controller:
            raise ValueError(
                f"{spec.mode} mode needs controller_timeout > 0: without one the last command would hold for ever when "
                "this process dies; set it in the RobotSpec, or allow_untimed_controller"
            )
        if spec.workspace is not None and forward is None:
            raise ValueError("the spec has a workspace; pass forward=, joint positions -> tool position")
        if spec.workspace is not None and not spec.has_positions:
            raise ValueError(f"a workspace cannot be kept in {spec.mode} mode; leave it out")
        period = 1.0 / self.settings.rate
        self.limiter = JointLimiter(limits_of(spec), period=period, min_period=0.5 * period)
        self._pd = PdLimiter(spec, period=period) if spec.mode == PD else None
        # of the modes in which torque is bounded, and where the joints go is for physics to decide
        self._efforts = EffortLimiter(spec, period=period) if spec.mode == EFFORT else self._pd
        self._moves = spec.has_positions or self._pd is not None  # commands say where the joints are to go
        self._positions = spec.mode == POSITION
        self._turning = self.limiter.continuous.tolist()
        self._period, self._longest = period, 2.0 * period
        self._machine = SafetyMachine(max_rearm_per_minute=self.settings.max_rearm_per_minute)
        self._monitor = StateMonitor(spec, self.settings)
        self._freeze = FreezeWatch(self.settings, spec)
        self._overrun = Overrun(period, limit=self.settings.overrun_ticks, stands_after=spec.stands_after)
        box = spec.workspace
        self._guard = WorkspaceGuard(box.lower, box.upper, forward) if box and forward else None
        self._lock = threading.RLock()
        self._now = self._moved_at = -inf
        self._sent = np.zeros(len(spec.joints))
        self._target: np.ndarray | None = None
        self._heard = -inf  # stamp of the newest command taken
        self._codes: list[str] = ["state_never"]
        self._outside: tuple[str, ...] = ()
        self._pressed, self._released_at = False, -inf
        self._under_way = UnderWay(len(spec.joints), (spec.dead_time or 0.0) + 2.0 * period)
        self._place = PlaceWatch(self.settings.hold_tolerance)
        self._armed_at: np.ndarray | None = None  # velocity mode: where it stood then
        self._stop_by = inf
        self._zeroed = False
        self._numbers: dict[str, str] = {}
        self._farewell = Farewell(self.settings.settle_time)
        self._leash = Leash(self.settings, self._difference)

    @property
    def state(self) -> str:
        """Name of the state of the safety machine."""
        return self._machine.name

    @property
    def waits(self) -> tuple[str, ...]:
        """What the last state has against it, with its numbers."""
        return self._monitor.with_numbers(self._codes)

    @property
    def still(self) -> bool:
        """Whether nothing is commanded that moves: no velocity, no effort."""
        return (self._efforts or self.limiter).still

    @property
    def motion(self) -> tuple[np.ndarray, float]:
        """(J,) commanded velocity [rad/s], measured in effort mode, and the period it was held for [s], 0 at rest."""
        limiter = self._efforts or self.limiter
        return limiter.velocity, limiter.moved

    def stand(self) -> None:
        """Forget the period of the last motion, before a tick that may not move at all."""
        (self._efforts or self.limiter).moved = 0.0

    @property
    def faults(self) -> tuple[str, ...]:
        """Codes since the last reset; the first is the cause."""
        return tuple(self._machine.faults)

    @property
    def numbers(self) -> dict[str, str]:
        """Each of `faults` -> what was measured and what was allowed."""
        return {code: self._numbers.get(code, "") for code in self.faults}

    def filter(self, command: Command | None, state: RobotState | None, now: float) -> tuple[Command, Verdict]:
        """One tick: what to send, and what became of the command.

        Args:
            command: newest command of whoever has authority; None when there is no new one. It may be given again.
            state: newest measured state; None when there is no new one.
            now: [s of the steady clock], the clock of all stamps.

        Returns:
            The command to send (do not send it when `verdict.publish` is False) and the verdict. Never raises: an
            exception inside brakes and latches the fault `internal`.
        """
        with self._lock:
            try:
                return self._filter(command, state, float(now))
            except Exception as error:  # whatever it was, the robot has to stop
                return self._emergency(now, error)

    def enable(self, on: bool = True) -> list[str]:
        """Allow motion (IDLE -> ARMED), or brake and return to IDLE.

        Commands stamped before the last tick are void from then on: nothing that was asked of a robot at rest happens
        once it may move.

        Returns:
            Reasons for a refusal; empty when it was done.
        """
        with self._lock:
            if not on:
                self._machine.handle(Event.DISABLE, self._now)
                self._begin_stop()
                return []
            was = self._machine.state
            refused = self._machine.handle(Event.ENABLE, self._now, blockers=self._blockers())
            last = self._monitor.last
            if not refused and was is IDLE and last is not None:
                self._settle_on(last.position)
                self._heard = max(self._heard, self._now)
            return refused

    def rearm(self) -> list[str]:
        """Clear a latched STOP: FAULT or ESTOP -> IDLE. Never causes motion; call `enable` afterwards.

        Returns:
            Every condition that stands against it; empty when it was done.
        """
        with self._lock:
            blockers = self._blockers()
            if self._now - self._released_at < self.settings.estop_clear_time:
                blockers.append("estop released too shortly ago")
            refused = self._machine.handle(Event.RESET, self._now, blockers=blockers)
            if not refused:
                self._monitor.forgive()
                self._numbers.clear()
                self._zeroed = False
            return refused

    def estop(self, source: str = "operator", *, pressed: bool = True) -> None:
        """Press or release the software e-stop; releasing it clears nothing."""
        with self._lock:
            if pressed:
                self._machine.handle(Event.ESTOP, self._now, code=f"estop_{source}")
            elif self._pressed:
                self._released_at = self._now
            self._pressed = pressed

    def report(self, code: str, numbers: str = "") -> None:
        """Latch a fault that was found outside: `controller_gone`, `duplicate_publisher`, `temperature` ..."""
        with self._lock:
            self._fault(code, numbers)

    def hinder(self, conditions: Sequence[str]) -> None:
        """Conditions outside (no controller, a silent sensor) against start-up, enable and reset; () = none."""
        with self._lock:
            self._outside = tuple(conditions)

    def soft_stop(self) -> None:
        """Brake and hold as after a lost command (flood, silent operator); goes on with the next good command."""
        with self._lock:
            self._lose()

    def adopt(self, settings: SafetySettings) -> None:
        """Take over shorter timeouts; other settings keep their first values."""
        with self._lock:
            self.settings = settings
            self._monitor.adopt(settings)

    def shutdown(self) -> None:
        """Brake, then publish nothing more: before the process ends."""
        with self._lock:
            self._machine.handle(Event.SHUTDOWN, self._now)
            self._begin_stop()

    # ------------------------------------------------------------ one tick

    def _filter(self, command: Command | None, state: RobotState | None, now: float) -> tuple[Command, Verdict]:
        reasons: list[str] = []
        if not isfinite(now) or now < self._now:
            self._fault("clock_jump", f"now is {now:.3f} s, the tick before was at {self._now:.3f} s")
            now = self._now if isfinite(self._now) else 0.0
            self._moved_at = now - self._period  # whatever time it is, the brake goes on
        self._now = now
        if self._overrun.tick(now) and self._machine.state in MOVABLE:
            self._fault("loop_overrun", self._overrun.numbers)
        if self._overrun.stood:  # from the old speed on, a brake or a motion would set it going with a jump
            self.limiter.reset(self.limiter.position)
        self._watch_state(state, now)
        self._watch_place()
        target = self._judge(command, now, reasons)
        self._advance(target, now, reasons)
        before = self._moved_at
        value, level = self._output(now, reasons)
        if self.spec.mode == VELOCITY and self._moved_at != before:
            self._under_way.add(now, self.limiter.velocity)
        return self._answer(value, level, reasons, command)

    def _watch_state(self, state: RobotState | None, now: float) -> None:
        self._codes = self._monitor.check(state, now)
        if self._machine.state is ACTIVE and self._moves:
            speed = max(map(abs, self.limiter.velocity.tolist())) if self._efforts is None else 0.0
            if self._freeze.check(self._monitor.seen, speed, now):
                self._codes.append("state_frozen")
                self._monitor.numbers["state_frozen"] = self._freeze.numbers
        else:
            self._freeze = FreezeWatch(self.settings, self.spec)
        if self._machine.state in MOVABLE:
            for code in self._codes:
                self._fault(code, self._monitor.numbers.get(code, ""))
        elif self._machine.state is STARTUP and self._monitor.is_settled(now) and not self._outside:
            self._machine.handle(Event.READY, now)
        elif "state_jump" in self._codes and self._machine.state not in MOVABLE:
            self._monitor.relearn()  # at rest the new place is taken as the truth

    def _watch_place(self) -> None:
        """ARMED means stay; repeating the command would drive a robot on that leaves, so the fault ends all sending."""
        last = self._monitor.last
        if self._machine.state is not ARMED or not self.spec.has_positions or last is None:
            self._armed_at = None
            self._place.leave()
        elif self.limiter.still:
            self._armed_at = last.position if self._armed_at is None else self._armed_at
            place = self.limiter.position if self._positions else self._armed_at
            away = np.abs(self._difference(last.position, place))
            if self._place.check(away):
                self._fault(
                    "left_place", farthest(self.spec.names, away, "from its place", self.settings.hold_tolerance)
                )

    def _judge(self, command: Command | None, now: float, reasons: list[str]) -> np.ndarray | None:
        """Target of a good command; None without a new one."""
        if command is None:
            return None
        value = np.asarray(command.value, float)
        if value.size and not all(map(isfinite, value.ravel().tolist())):
            self._fault("cmd_nonfinite", f"the command is {value.tolist()}")
            reasons.append("bad_command")
            return None
        if value.size and value.shape != self._sent.shape:
            self._fault("cmd_shape", f"the command has shape {value.shape}, expected {self._sent.shape}")
            reasons.append("bad_command")
            return None
        stamp = float(command.stamp)
        if not (now - self.settings.command_timeout <= stamp <= now + self.settings.future_tolerance):
            reasons.append("stale_command")
            return None
        if stamp < self._heard:
            return None  # older than one already taken
        self._heard = stamp
        if not value.size:
            self._target = None
            if self._machine.state is ACTIVE:
                # legs that were let down do not stand up again by themselves
                self._machine.handle(Event.RELEASE if self._pd is None else Event.DISABLE, now)
                self._begin_stop()
            return None
        return value

    def _advance(self, target: np.ndarray | None, now: float, reasons: list[str]) -> None:
        """Transitions that commands and time bring about."""
        if target is not None:
            self._target = target
            if self._machine.state is ARMED:
                if self._near(target):
                    self._machine.handle(Event.FOLLOW, now)
                else:
                    reasons.append("start_mismatch")
        if self._machine.state is ACTIVE and now - self._heard > self.settings.command_timeout:
            reasons.append("stale_command")
            self._lose()
        if self._machine.state is STOPPING and self._is_braked(now):
            self._machine.handle(Event.STOPPED, now)

    def _lose(self) -> None:
        """The source of the commands has gone silent, or talks nonsense."""
        self._target = None
        if self._pd is not None and self._machine.state is ACTIVE:
            self._fault("cmd_timeout", "a robot on legs does not stand up again by itself")
        else:
            self._machine.handle(Event.LOST, self._now)
            self._begin_stop()

    def _is_braked(self, now: float) -> bool:
        """Whether braking is over; who falls silent then has sent a command that stands, since the last one stays."""
        if self._efforts is None:
            return not self.limiter.velocity.any()
        rested = self._monitor.resting() or now > self._stop_by
        return rested and (self._efforts.still or not (self._machine.leaving or self._pd is not None))

    def _near(self, target: np.ndarray) -> bool:
        if not self._positions:
            return self._pd is None or self._pd.ready(target, self.settings.lead_fault)
        last = self._monitor.last
        assert last is not None
        return bool((np.abs(self._difference(target, last.position)) <= self.settings.start_tolerance).all())

    def _output(self, now: float, reasons: list[str]) -> tuple[np.ndarray, Level]:
        machine, period = self._machine, now - self._moved_at
        last = self._monitor.last
        if machine.state in (STARTUP, IDLE):
            self._moved_at = now
            if last is not None:
                self._settle_on(last.position)
            reasons.append("starting" if machine.state is STARTUP else "not_enabled")
            return self._resting(), HOLD
        if period < self.limiter.min_period:  # called again within one period: the answer stands
            return self._sent, OK if machine.state is ACTIVE else self._hold_level()
        self._moved_at = now
        period = float(min(period, self._longest))  # a late tick must not make up for lost time
        if machine.state is ACTIVE and self._target is not None:
            return self._follow(self._target, period, now, reasons)
        if machine.state is ESTOP and self.settings.estop_action != "brake":
            if not self._zeroed:
                self._settle_on(self.limiter.position)
            self._zeroed = True
            if self._pd is not None and last is not None:  # damping, as much as the joints bear now
                self._pd.stop(Moment(last, True, last_stop=True), period)
        elif self._efforts is not None:
            self._rest_efforts(self._efforts, period, now)
        elif machine.state is not ARMED or np.any(self.limiter.velocity):
            self.limiter.brake(period)
        if machine.state is ARMED:
            reasons += [] if reasons else ["stale_command"]
        elif machine.state is STOPPING:
            reasons.append("stopping")
        self._sent = self._resting()
        return self._sent, self._hold_level()

    def _follow(self, target: np.ndarray, period: float, now: float, reasons: list[str]) -> tuple[np.ndarray, Level]:
        limiter, last = self._efforts or self.limiter, self._monitor.last
        assert last is not None
        places = [limiter.position]
        if not isinstance(limiter, JointLimiter):
            limiter.step(target, last.position, last.velocity, period)
        elif not self._positions:
            ways = self._under_way.ways(now, self._monitor.age(now))
            places = [last.position, last.position + ways.sum(0)]
            limiter.step_velocity(target, last.position, under_way=ways, period=period)
        else:
            limiter.step(self._lead(target, last, now, reasons), period)
        if True in limiter.at_limit.tolist():
            reasons.append("limit")
        if True in limiter.at_rate.tolist():
            reasons.append("rate")
        if self._guard and isinstance(limiter, JointLimiter) and self._guard.hold_back(limiter, places, period):
            reasons.append("workspace")
        self._sent = self._resting()
        return self._sent, CLIPPED if reasons else OK

    def _rest_efforts(self, limiter: EffortLimiter | PdLimiter, period: float, now: float) -> None:
        last, state = self._monitor.last, self._machine.state
        if UNTRUSTED & set(self._codes) or self._monitor.age(now) > self.settings.state_timeout:
            last = None
        over = state is STOPPING and now > self._stop_by
        done, leaving = over or self._monitor.resting(), over or self._machine.leaving
        limiter.stop(Moment(last, done, last_stop=leaving, armed=state is ARMED), period)

    def _lead(self, target: np.ndarray, last: RobotState, now: float, reasons: list[str]) -> np.ndarray:
        """Target held near the robot once the command has run ahead of it; a robot that does not follow is a fault."""
        lead = differences(self.limiter.position.tolist(), self._monitor.place, self._turning)
        if self._leash.is_strained(lead, last.position, now):
            self._fault("tracking", farthest(self.spec.names, lead, "behind its command", self.settings.lead_soft))
        most = self.settings.lead_soft
        if max(map(abs, lead)) <= most:
            return target
        reasons.append("lead")
        soft = np.abs(lead) > most
        return np.where(soft, last.position + np.clip(self._difference(target, last.position), -most, most), target)

    # ------------------------------------------------------------ small parts

    def _difference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        way = a - b
        return short_way(way, self._turning) if True in self._turning else way

    def _resting(self) -> np.ndarray:
        """The limiter's present command in the mode of the robot."""
        if self._efforts is not None:
            return self._efforts.command
        return self.limiter.position if self._positions else self.limiter.velocity

    def _settle_on(self, position: np.ndarray) -> None:
        self.limiter.reset(position)
        if self._efforts is not None:
            self._efforts.reset(position)
        self._sent = self._resting()
        self._target = None
        self._leash.slacken()

    def _hold_level(self) -> Level:
        return STOP if self._machine.latching else HOLD

    def _fault(self, code: str, numbers: str = "") -> None:
        self._numbers.setdefault(code, numbers)
        event = Event.UNTRUSTED if code in UNTRUSTED else Event.FAULT
        self._machine.handle(event, self._now, code=code)
        self._begin_stop()

    def _begin_stop(self) -> None:
        if self._machine.state is STOPPING:
            slowest = (self._efforts or self.limiter).stop_seconds
            self._stop_by = self._now + 1.5 * slowest + 2.0 * self._period

    def _blockers(self) -> list[str]:
        found = [code for code in self._codes if code != "limit_measured" or self._machine.state is IDLE]
        found += self._outside
        if self._pressed:
            found.append("estop is pressed")
        if not found and not self._monitor.is_settled(self._now) and "limit_measured" not in self._codes:
            found.append(f"state not fresh for {self.settings.settle_time:g} s yet")
        if not self._monitor.resting():
            found.append("robot is not at rest")
        return found

    def _answer(
        self, value: np.ndarray, level: Level, reasons: list[str], command: Command | None
    ) -> tuple[Command, Verdict]:
        machine = self._machine
        if machine.latching or "bad_command" in reasons:
            level = STOP
            reasons += machine.reasons
        quiet = self._quiet()
        source, seq = (command.source, command.seq) if command is not None else ("supervisor", 0)
        verdict = Verdict(level, tuple(dict.fromkeys(reasons)), machine.name, machine.cause, not quiet)
        return Command(self._now, value.copy(), source, seq, self._pd and self._pd.gains), verdict

    def _quiet(self) -> bool:
        """Whether nothing may be sent."""
        state, positions = self._machine.state, self._positions
        quiet = state is STARTUP or (state is IDLE and positions)
        quiet |= state is ESTOP and self.settings.estop_action == "halt"
        if positions and self._machine.latching:
            gone, astray = not GONE.isdisjoint((*self.faults, *self._codes)), "left_place" in self.faults
            return quiet | self._farewell.over(self._now, self.limiter.still, gone=gone, astray=astray)
        self._farewell.begin(self.limiter.still)
        return quiet

    def _emergency(self, now: float, error: Exception) -> tuple[Command, Verdict]:
        """Brake with the last good command and latch; used only when the tick itself broke."""
        self._numbers.setdefault("internal", f"{type(error).__name__} in a tick: {error}")
        self._machine.handle(Event.UNTRUSTED, self._now, code="internal")
        self._machine.handle(Event.FAULT, self._now, code="internal")
        if np.all(np.isfinite(self.limiter.velocity)) and np.isfinite(self._moved_at):
            self.limiter.brake()
            if self._efforts is not None:
                self._efforts.stop(Moment(None, True), self._period)
            self._sent = self._resting()
        self._moved_at = self._now
        return (
            Command(self._now, self._sent.copy(), "supervisor", gains=self._pd and self._pd.gains),
            Verdict(STOP, ("internal",), self.state, self._machine.cause, not self._quiet()),
        )
