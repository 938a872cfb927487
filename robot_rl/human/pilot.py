"""Everything between a policy's proposal and the robot: the device, who drives, and the safety layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from robot_rl.arbiter import Arbiter, Driver, Press, Reading, TakeoverSettings
from robot_rl.human.devices.teleop import Camera, Teleop
from robot_rl.real.action_safety import ActionSafety, Axes, SafetyLimits
from robot_rl.real.core.clock import Clock, ManualClock, SteadyClock
from robot_rl.real.core.priority import lift_priority
from robot_rl.real.core.spec import SpecError
from robot_rl.types import IOSpec, Obs, StateDict, StepEnv
from robot_rl.types.option_words import near


@dataclass(frozen=True)
class Driven:
    """One tick's command and how it came about; times in seconds.

    Attributes:
        executed: (A,) what the safety layer let through.
        command: (A,) what was asked for.
        human_action: (A,) of the device, zeros without one.
        human_valid: the device gave a command.
        human: a person drives.
        moving: somebody drives.
        started: first step of an intervention.
        driver: name of the state of the arbiter.
        disagreement: between policy and person, nan without one.
        lost: the device was lost while it was needed.
        presses: discrete keys.
        enable: dead-man.
        norm: of the device.
        level: of the safety verdict, 0 to 3.
        bits: of its reasons.
        reasons: in words.
        clip_frac: share of the command that was cut.
        finite: the command was finite.
        stopped: a stop is latched.
        stopped_by: the limit or fault that latched it, with its numbers; "" without a stop.
        pressed: a person did it.
        warning: about the device.
        gripper: (G,) where the grippers stand, in units of their actions; None where that is not measured.
    """

    executed: np.ndarray
    command: np.ndarray
    human_action: np.ndarray
    human_valid: bool
    human: bool
    moving: bool
    started: bool
    driver: str
    disagreement: float
    lost: bool
    presses: tuple[Press, ...]
    enable: bool
    norm: float
    level: int
    bits: int
    reasons: tuple[str, ...]
    clip_frac: float
    finite: bool
    stopped: bool
    stopped_by: str
    pressed: bool
    warning: str
    gripper: np.ndarray | None = None


@runtime_checkable
class OwnSupervisor(Protocol):
    """A robot with a safety supervisor of its own, in another process or machine, which has to hear STOP itself."""

    def stop(self) -> None:
        """Latch at once, whatever the robot does, a reset too; from any thread, waits for nothing."""
        ...

    def unlock(self) -> None:
        """The person's act before the latch may be cleared."""
        ...


@runtime_checkable
class LiveRobot(Protocol):
    """A robot in the world: it goes to its start in its own time, and what it sees changes while it stands."""

    def look(self) -> Obs:
        """A fresh observation (1, ...); moves nothing. Raises RuntimeError where there is none."""
        ...

    def pictures(self) -> Mapping[str, tuple[np.ndarray | bytes, float]]:
        """Camera -> its newest picture, (H, W, 3) uint8 or a JPEG, and when it was taken [s of the steady clock].

        Callable from any thread, at any rate.
        """
        ...


class Pilot:
    """Joins a device, the arbiter and the safety layer.

    Args:
        io: interface of the robot.
        human: the device, or None: the policy drives alone (evaluation).
        axes: () -> place of the robot's axes, or None; see `ActionSafety`.
        takeover: settings; a device that is needed for motion starts in HOLD.
        limits: of the safety layer.
        clock: default: the machine's steady clock, or simulated time when the device does not need real time.
        teleports: the robot may be put elsewhere at the end of an episode, as simulated ones are.
        robot: with a supervisor of its own, or None.
    """

    def __init__(
        self,
        io: IOSpec,
        human: Teleop | None,
        *,
        axes: Callable[[], Axes | None] | None = None,
        takeover: TakeoverSettings | None = None,
        limits: SafetyLimits | None = None,
        clock: Clock | None = None,
        teleports: bool = False,
        robot: OwnSupervisor | None = None,
    ) -> None:
        self.io, self.human, self._robot = io, human, robot
        self._seen: Axes | None = None
        self.realtime = human is not None and human.realtime
        self.simulates = teleports
        """The robot is a simulation: it may be put anywhere, and there may be several."""
        self.clock: Clock = clock or (SteadyClock() if self.realtime else ManualClock())
        self._axes = axes or (lambda: None)
        self.safety = ActionSafety(io, self._axes(), limits)
        start = Driver.HOLD if self.realtime else Driver.POLICY
        self.arbiter = Arbiter(io.action_dim, takeover, start=start)
        self._period = 1.0 / io.control_hz
        self._next = self.clock.now()
        self.late = 0
        """Ticks that came more than half a period late."""
        self._unlock = self._demo = self._overrun = self._pressed = False
        self.pausing = False
        """A person wants a pause: after this episode the robot holds until they say go."""
        if human is not None:
            human.on_stop = self.stop

    @property
    def driver(self) -> str:
        """State of the arbiter."""
        return self.arbiter.driver.value

    @property
    def mode(self) -> str:
        """How a person takes over."""
        return self.arbiter.settings.mode

    def begin(self, demo: bool = False) -> list[str]:
        """Before an episode: let the safety layer see the robot at rest and allow motion.

        Args:
            demo: the person is to drive the whole episode.

        Returns:
            What stands against motion; empty when the episode may start.
        """
        if self.human is not None:
            self.human.prepare(demo)
            self.human.begin(self.clock.now())
        self.arbiter.begin()
        self._seen = self._axes()
        self.safety.begin(None if self._seen is None else self._seen.gripper, fresh=self.simulates)
        self._tell()
        self._demo = demo
        refused = self._ask(self.safety.enable)
        self._next = self.clock.now()
        self._overrun = False
        return refused

    def restart(self) -> None:
        """Before `begin`: clear a latched fault of a simulated robot that has been put back at its start.

        A stop stays latched until a person clears it. Where nobody is there who could (trials, a scripted person in
        simulated time), being put back is that act. An e-stop is never cleared here.
        """
        if self.realtime or not self.simulates or self.safety.supervisor.state != "FAULT":
            return
        if not self._ask(self.safety.rearm):
            self.arbiter.driver = Driver.POLICY

    def _ask(self, what: Callable[[], list[str]]) -> list[str]:
        """Ask the safety layer, which watches the robot meanwhile, for 12 periods at most; what it refuses last."""
        refused: list[str] = []
        for _ in range(12):
            self.safety.watch(self._axes(), self.clock.now())
            refused = what()
            self.clock.sleep_until(self.clock.now() + self._period)
            if not refused:
                break
        return refused

    def end(self) -> None:
        """After an episode: brake and hold, so that the reset and the learner's pauses move nothing."""
        if self.pausing:
            self.pausing = False
            self.hold()
        self.safety.disable()
        for _ in range(20):
            if self.safety.supervisor.state != "STOPPING":
                return
            # a simulated robot has been put elsewhere by now; what brakes is the one that was seen last
            self.safety.watch(self._seen if self.simulates else self._axes(), self.clock.now())
            self.clock.sleep_until(self.clock.now() + self._period)

    def move_to(self, env: StepEnv) -> None:
        """Between episodes: drive the robot of another simulation, with the same person and the same safety layer.

        Args:
            env: of one copy, reset before.

        Raises:
            ValueError: this pilot drives a robot, and there is one of it.
        """
        if not self.simulates:
            raise ValueError("this pilot drives a robot; its trials run on the environment that it learns on")
        self._axes = _place(env)
        self._seen = self._axes()

    def now_ns(self) -> int:
        """The clock in whole nanoseconds."""
        return round(self.clock.now() * 1e9)

    def stop(self) -> None:
        """STOP, at once and from any thread: neither a step, a reset nor a learner that takes its time delays it."""
        if self._robot is not None:
            self._robot.stop()
        self._pressed = True
        self.safety.estop()

    def go_on(self) -> None:
        """The policy drives where the robot held; a stop stays latched."""
        if self.arbiter.driver is Driver.HOLD:
            self.arbiter.driver = Driver.POLICY

    def hold(self) -> None:
        """Nobody drives until a person resumes; a simulated robot without a person goes on with the next episode."""
        if self.realtime:
            self.arbiter.hold()

    def drive(self, obs: Obs, proposal: np.ndarray, *, blind: bool = False, grip: np.ndarray | None = None) -> Driven:
        """One tick: who drives, and what the robot gets.

        Args:
            obs: without a batch axis.
            proposal: (A,) of the policy, also while a person drives.
            blind: nobody drives in this tick: what the robot sees, or its gripper, is not to be trusted.
            grip: (G,) what the grippers are to do in such a tick; None keeps them.
        """
        now = self.clock.now()
        reading = self._read(now, obs, proposal)
        if not np.isfinite(reading.value).all():
            reading = Reading(reading.stamp, np.zeros_like(reading.value), connected=False)
        if any(press.kind == "estop" for press in reading.presses):
            self.stop()
        decision = self.arbiter.tick(now, reading, np.nan_to_num(proposal, nan=0.0, posinf=0.0, neginf=0.0))
        self.pausing ^= any(press.kind == "pause" for press in decision.presses)
        if self._overrun:
            self._overrun = False
            self.arbiter.hold()
            decision = replace(
                decision, driver=self.arbiter.driver, moving=False, lost=True, warning="the loop was late"
            )
        command = decision.action
        if blind:
            decision = replace(decision, moving=False, human=False, warning=decision.warning or "a camera stands still")
            command = np.zeros_like(command)
        if self._demo and decision.driver in (Driver.POLICY, Driver.RETURN):
            # in a demonstration nobody but the person drives: between their moves the robot holds
            decision = replace(decision, moving=False, human=False, driver=Driver.HOLD)
            command = np.zeros_like(command)
        if decision.moving and not decision.human and not np.isfinite(proposal).all():
            command = np.asarray(proposal, np.float32)  # the safety layer has to see it
        self._seen = self._axes()
        done = self.safety.filter(command, self._seen, now, moving=decision.moving, human=decision.human, grip=grip)
        if self.safety.stopped:
            self.arbiter.stop()
        if not decision.human:
            self._tell()
        return Driven(
            executed=done.action,
            command=np.asarray(command, np.float32),
            human_action=np.asarray(reading.value, np.float32),
            human_valid=bool(reading.connected and (reading.enable or reading.norm > 0 or decision.human)),
            human=decision.human,
            moving=decision.moving,
            started=decision.started,
            driver=decision.driver.value,
            disagreement=decision.disagreement,
            lost=decision.lost,
            presses=decision.presses,
            enable=reading.enable,
            norm=reading.norm,
            level=int(done.level),
            bits=done.bits,
            reasons=done.reasons,
            clip_frac=done.clip_frac,
            finite=done.finite,
            stopped=self.safety.stopped,
            stopped_by=self.safety.stopped_by,
            pressed=self._pressed,
            warning=decision.warning,
            gripper=None if self._seen is None else self._seen.gripper,
        )

    def advise(self, wanted: bool) -> None:
        """Tell a device that can hear it whether help is wanted; a screen shows it with the telemetry."""
        if self.human is not None:
            self.human.advise(wanted)

    def idle(self, obs: Obs) -> tuple[Press, ...]:
        """One tick in which the robot holds: keys are heard, the robot is watched, nothing moves.

        Returns:
            The keys.
        """
        now = self.clock.now()
        reading = self._read(now, obs, np.zeros(self.io.action_dim, np.float32))
        kinds = [press.kind for press in reading.presses]
        self.safety.watch(self._axes(), now)
        if "pause" in kinds:  # between two episodes there is nothing to wait for
            self.hold()
        if "estop" in kinds:
            self._unlock = False  # a stop takes back whatever was asked for before it, and with it
            self.stop()
        elif "reset" in kinds:
            self._unlock = True
            self.safety.estop(pressed=False)
        stopped = self.safety.stopped
        if self._unlock and stopped and not self.safety.rearm():
            stopped = False
        # while it is stopped, too: a dead-man or a key that was pressed before the unlock is no takeover after it
        self.arbiter.tick(now, reading, np.zeros_like(reading.value))
        if stopped:
            self.arbiter.stop()
        elif self._unlock:
            self._unlock = self._pressed = False
            if self._robot is not None:
                self._robot.unlock()
            if self.arbiter.driver is Driver.STOPPED:
                self.arbiter.driver = Driver.HOLD
        return reading.presses

    def wait(self) -> None:
        """Until the next tick is due; a late tick is counted, never made up for."""
        self._next += self._period
        now = self.clock.now()
        if now > self._next + 0.5 * self._period:
            self.late += 1
            # nobody steered for 5 periods: the robot has come to rest by itself, and a person has to resume
            self._overrun = self._overrun or now > self._next + 5.0 * self._period
            self._next = now
        self.clock.sleep_until(self._next)

    def spare(self) -> float:
        """Seconds until the next tick is due; infinite in simulated time."""
        return self._next + self._period - self.clock.now() if self.realtime else math.inf

    def show(
        self,
        telemetry: dict[str, Any],
        frame: Camera | None = None,
        views: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Hand telemetry, a picture and what the policy sees to a device that has a screen."""
        if self.human is not None:
            self.human.show(telemetry, frame, views)

    def lift_priority(self, priority: int) -> AbstractContextManager[str]:
        """Real-time priority for a while, where a person is at the seat; "on", "off" or why not.

        Args:
            priority: SCHED_FIFO, of the calling thread; the process's other threads get one less.
        """
        return lift_priority(priority if self.realtime else 0)

    def close(self) -> None:
        """Stop, and release the device."""
        self.safety.disable()
        if self.human is not None:
            self.human.close()

    def state_dict(self) -> StateDict:
        """Clock and a scripted person's generator; between episodes."""
        state: StateDict = {"now": None if self.realtime else self.clock.now()}
        if self.human is not None:
            state["human"] = self.human.state_dict()
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Continue simulated time and the scripted person."""
        if state["now"] is not None and isinstance(self.clock, ManualClock):
            self.clock.sleep_until(float(state["now"]))
            self._next = self.clock.now()
        if self.human is not None and "human" in state:
            self.human.load_state_dict(state["human"])

    def _tell(self) -> None:
        """The hands that do not drive hear where the grippers are."""
        if self.human is not None:
            self.human.follow(self.safety.last)

    def _read(self, now: float, obs: Obs, proposal: np.ndarray) -> Reading:
        if self.human is None:
            return Reading(now, np.zeros(self.io.action_dim, np.float32))
        return self.human.read(now, obs, proposal)


def simulated_pilot(
    env: StepEnv,
    human: Teleop | None,
    *,
    takeover: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    clock: Clock | None = None,
) -> Pilot:
    """A pilot for one simulated robot: environment of one copy, with `tool()` where its actions are moves.

    Args:
        env: vector environment with one copy.
        human: the device, or None.
        takeover: arguments of `TakeoverSettings`.
        limits: arguments of `SafetyLimits`.
        clock: of the pilot.

    Raises:
        ValueError: more than one copy, or unknown settings.
    """
    if env.num_envs != 1:
        raise ValueError(f"a person drives one robot, the environment has {env.num_envs} copies; use num_envs=1")
    for name, kind, given in (("takeover", TakeoverSettings, takeover), ("safety", SafetyLimits, limits)):
        known = [item.name for item in fields(kind)]
        for key in (given or {}).keys() - set(known):
            raise ValueError(f"{name}.{key} is no setting of {name}{near(key, known)}")
    if env.parts.tool is not None:
        env.reset()  # a place to read limits from
    try:
        return Pilot(
            env.io,
            human,
            axes=_place(env),
            takeover=TakeoverSettings(**(takeover or {})),
            limits=SafetyLimits(**(limits or {})),
            clock=clock,
            teleports=env.parts.saves,  # what can be put anywhere is no robot
            robot=env if isinstance(env, OwnSupervisor) else None,
        )
    except (TypeError, SpecError) as error:
        raise ValueError(f"the takeover or safety settings are wrong: {error}") from error


def _place(env: StepEnv) -> Callable[[], Axes | None]:
    """Where the robot of an environment stands now."""
    call = env.parts.tool
    if call is None:
        return lambda: None

    def axes() -> Axes | None:
        found = call()
        grip = found["gripper"][0] if "gripper" in found else None
        return Axes(found["position"][0], found["velocity"][0], found["low"], found["high"], grip)

    return axes
