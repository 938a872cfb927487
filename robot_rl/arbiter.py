"""Who drives: a state machine between a policy and a person, pure and with an injected clock.

POLICY, HUMAN, HOLD (neither, the controller keeps its pose), RETURN (blending back to the policy), STOPPED (latched).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

LABELS = ("success", "failure", "undo", "rerecord", "abort")
ORDERS = ("estop", "reset", "resume", "hold", "pause", "scene")


class Driver(str, Enum):
    """State of the machine."""

    POLICY = "POLICY"
    HUMAN = "HUMAN"
    HOLD = "HOLD"
    RETURN = "RETURN"
    STOPPED = "STOPPED"


@dataclass(frozen=True)
class Press:
    """A discrete key: one of LABELS or ORDERS, and when it went down [s].

    Attributes:
        kind: see above.
        time: see above.
        episode: that a label is about; -1 is the one under way, or else the newest.
    """

    kind: str
    time: float
    episode: int = -1


@dataclass(frozen=True)
class Reading:
    """What a device says now.

    Attributes:
        stamp: when the device last gave a sign of life [s]; -inf before the first.
        value: (A,) command in the policy's action space, after the dead zone; zeros when nothing is pushed.
        norm: largest absolute axis after the dead zone. It decides about implicit takeovers; a gripper that is held
            open is part of `value` but not of `norm`.
        enable: the dead-man is held.
        toggles: how often the take-over key has been pressed so far.
        presses: discrete keys since the last reading.
        connected: the device says that it is there.
    """

    stamp: float
    value: np.ndarray
    norm: float = 0.0
    enable: bool = False
    toggles: int = 0
    presses: tuple[Press, ...] = ()
    connected: bool = True


@dataclass(frozen=True)
class TakeoverSettings:
    """When control changes hands.

    Attributes:
        mode: "deadman" (a person drives while the enable is held), "toggle" (a key changes hands) or "implicit"
            (moving the device is enough).
        th_on: implicit: norm above which a person takes over.
        th_off: implicit: norm below which the device counts as let go.
        n_on: implicit: ticks above `th_on` in a row.
        hold_ms: implicit: time below `th_off` before the policy gets control back.
        blend_ticks: the policy has everything again at this tick of RETURN; 0 = at once. The ticks before it are mixed
            and count neither for the person nor for the policy (`Source.BLEND`).
        decay: factor per tick on the person's last command while blending.
        device_timeout_ms: age at which the device counts as lost.
        lost_in_policy: "hold" (supervised: the robot moves only with a person present) or "slow" (attended: finish the
            episode at half speed).
        absent_s: attended: after this long without any input of a person (a key, the dead-man, a deflection) the policy
            drives at half speed, after four times that nobody does until a person resumes; 0 = never.
        stuck_s: implicit: a norm above `th_on` that does not change for this long is a drifting device; it is ignored.
        debounce_ms: presses of one key nearer than this are one.

    Raises:
        ValueError: names the setting.
    """

    mode: str = "deadman"
    th_on: float = 0.05
    th_off: float = 0.02
    n_on: int = 1
    hold_ms: float = 300.0
    blend_ticks: int = 3
    decay: float = 0.5
    device_timeout_ms: float = 100.0
    lost_in_policy: str = "hold"
    absent_s: float = 0.0
    stuck_s: float = 3.0
    debounce_ms: float = 150.0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("mode", self.mode, ("deadman", "toggle", "implicit")),
            ("lost_in_policy", self.lost_in_policy, ("hold", "slow")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is '{value}', expected one of {', '.join(allowed)}")
        if not 0.0 <= self.th_off <= self.th_on:
            raise ValueError(f"th_off is {self.th_off} and th_on {self.th_on}, expected 0 <= th_off <= th_on")
        if self.n_on < 1 or self.blend_ticks < 0 or not 0.0 <= self.decay <= 1.0:
            raise ValueError(
                f"n_on, blend_ticks and decay are {self.n_on}, {self.blend_ticks}, {self.decay}; expected at least 1, "
                "at least 0 and a number in [0, 1]"
            )


@dataclass(frozen=True)
class Decision:
    """Outcome of one tick.

    Attributes:
        driver: state after the tick.
        action: (A,) to send, before safety.
        human: the step counts as human.
        moving: somebody drives; False in HOLD and STOPPED.
        started: first step of an intervention.
        disagreement: |action_policy - action_human|_2 while a person drives, else nan.
        lost: the device was lost while it was needed; the episode has to end (comms).
        presses: debounced keys of this tick.
        warning: "" or what is wrong with the device.
    """

    driver: Driver
    action: np.ndarray
    human: bool
    moving: bool
    started: bool = False
    disagreement: float = math.nan
    lost: bool = False
    presses: tuple[Press, ...] = ()
    warning: str = ""


class Debounce:
    """Lets the first of several presses of a key through.

    Args:
        seconds: later presses of that key nearer than this to the last one are bounces.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: dict[tuple[str, int], float] = {}

    def take(self, presses: tuple[Press, ...]) -> tuple[Press, ...]:
        """The presses that are meant."""
        out = []
        for press in presses:
            key = press.kind, press.episode
            if press.time - self._last.get(key, -math.inf) >= self._seconds:
                out.append(press)
            self._last[key] = press.time
        return tuple(out)


@dataclass
class _Device:
    """What the machine remembers of the device."""

    toggles: int = 0
    enabled: bool = False
    above: int = 0
    below_since: float | None = None
    norm: float = 0.0
    same_since: float = -math.inf
    ignored: bool = False
    last: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))


class Arbiter:
    """Decides every tick who drives.

    HOLD and STOPPED are left by a person only: STOPPED -> HOLD by "reset", HOLD -> POLICY by "resume", HOLD -> HUMAN by
    taking over. A device that is lost while a person drives never hands the robot to the policy.

    Args:
        actions: A.
        settings: thresholds and times.
        start: first state, POLICY or HOLD.

    Source: specification of human-in-the-loop learning, section 2. Where it differs from HIL-SERL: hysteresis, so that
    "hold still" stays a human action (there the policy acts for every tick with a centred device); where from RLinf:
    the hold time starts at the last deflection above `th_off`, not at the last non-zero value.
    """

    def __init__(
        self, actions: int, settings: TakeoverSettings | None = None, *, start: Driver = Driver.POLICY
    ) -> None:
        self.settings = settings or TakeoverSettings()
        self.driver = start
        self._actions = actions
        self._device = _Device(last=np.zeros(actions, np.float32))
        self._blend = 0
        self._heard: float | None = None  # when a person last did anything
        self._toggles = 0
        self._debounce = Debounce(self.settings.debounce_ms * 1e-3)

    def begin(self) -> None:
        """New episode: the policy drives until somebody takes over. STOPPED and HOLD stay; a person has to resume.

        Who has the robot by a toggle keeps it: nothing but the key gives it back.
        """
        self._blend = 0
        device = self._device
        device.enabled, device.above, device.below_since = False, 0, None
        device.last = np.zeros(self._actions, np.float32)
        kept = self.settings.mode == "toggle" and self.driver is Driver.HUMAN
        if self.driver not in (Driver.STOPPED, Driver.HOLD) and not kept:
            self.driver = Driver.POLICY

    def stop(self) -> None:
        """Latch STOPPED (safety fault, e-stop)."""
        self.driver = Driver.STOPPED

    def hold(self) -> None:
        """Nobody drives until a person resumes."""
        if self.driver is not Driver.STOPPED:
            self.driver = Driver.HOLD

    def tick(self, now: float, reading: Reading, policy: np.ndarray) -> Decision:
        """One control tick.

        Args:
            now: [s], the clock of the reading's stamps.
            reading: of the device.
            policy: (A,) what the policy proposes; computed in every state (shadow).
        """
        cfg, device = self.settings, self._device
        presses = self._debounce.take(reading.presses)
        age = now - reading.stamp
        alive = reading.connected and age <= cfg.device_timeout_ms * 1e-3 + 1e-9
        warning = self._watch(now, reading, alive)
        wants, edge = self._wants(now, reading, alive and not device.ignored)
        before, lost = self.driver, False
        self._orders(presses)
        absent = self._absent(now, reading)
        if absent >= 2 and self.driver is Driver.POLICY:
            self.driver, lost = Driver.HOLD, True
        needed = self.driver in (Driver.HUMAN, Driver.RETURN) or (
            self.driver is Driver.POLICY and cfg.lost_in_policy == "hold"
        )
        if needed and not alive:
            # zero motion from this tick on; the policy never gets a robot whose operator vanished
            self.driver, lost = Driver.HOLD, True
        elif self.driver in (Driver.POLICY, Driver.RETURN, Driver.HOLD) and wants and edge:
            self.driver = Driver.HUMAN
        elif self.driver is Driver.HUMAN and not wants:
            self.driver, self._blend = (Driver.RETURN, 0) if cfg.blend_ticks else (Driver.POLICY, 0)
        if absent and not warning:
            warning = f"no sign of an operator for {cfg.absent_s * (4 if absent > 1 else 1):g} s"
        return self._decide(before, reading, policy, alive and not absent, lost, presses, warning)

    def _absent(self, now: float, reading: Reading) -> int:
        """0 a person is there, 1 not for `absent_s`, 2 not for four times that."""
        active = reading.enable or reading.norm > 0.0 or bool(reading.presses) or reading.toggles != self._toggles
        self._toggles = reading.toggles
        if active or self._heard is None:
            self._heard = now
        if not self.settings.absent_s:
            return 0
        quiet = (now - self._heard) / self.settings.absent_s - 1e-9
        return 0 if quiet <= 1.0 else 1 if quiet <= 4.0 else 2

    def _decide(
        self,
        before: Driver,
        reading: Reading,
        policy: np.ndarray,
        alive: bool,
        lost: bool,
        presses: tuple[Press, ...],
        warning: str,
    ) -> Decision:
        cfg, device = self.settings, self._device
        still = np.zeros(self._actions, np.float32)
        if self.driver in (Driver.HOLD, Driver.STOPPED):
            human = lost and before is Driver.HUMAN
            return Decision(self.driver, still, human, False, lost=lost, presses=presses, warning=warning)
        if self.driver is Driver.HUMAN:
            action = np.asarray(reading.value, np.float32)
            device.last = action
            gap = float(np.linalg.norm(np.asarray(policy, float) - action))
            started = before is not Driver.HUMAN
            return Decision(self.driver, action, True, True, started, gap, presses=presses, warning=warning)
        if self.driver is Driver.RETURN:
            self._blend += 1
            beta = self._blend / cfg.blend_ticks
            last = device.last * cfg.decay**self._blend
            action = ((1.0 - beta) * last + beta * np.asarray(policy)).astype(np.float32)
            if self._blend >= cfg.blend_ticks:  # nothing of the person is left in it
                self.driver = Driver.POLICY
            return Decision(self.driver, action, False, True, presses=presses, warning=warning)
        action = np.asarray(policy, np.float32)
        if not alive:  # attended: the episode is finished slowly
            action, warning = 0.5 * action, warning or "device lost; finishing at half speed"
        return Decision(self.driver, action, False, True, presses=presses, warning=warning)

    def _orders(self, presses: tuple[Press, ...]) -> None:
        for press in presses:
            if press.kind == "estop":
                self.driver = Driver.STOPPED
            elif press.kind == "hold":
                self.hold()
            elif press.kind == "reset" and self.driver is Driver.STOPPED:
                self.driver = Driver.HOLD
            elif press.kind == "resume" and self.driver is Driver.HOLD:
                self.driver = Driver.POLICY

    def _wants(self, now: float, reading: Reading, usable: bool) -> tuple[bool, bool]:
        """(the person wants to drive, this is news: a fresh press counts, an old one does not end a HOLD)."""
        cfg, device, driving = self.settings, self._device, self.driver is Driver.HUMAN
        if cfg.mode == "deadman":
            enabled = usable and reading.enable
            edge = enabled and not device.enabled
            # after a loss the enable must be seen released first: a link that is back must not move the robot by itself
            device.enabled = enabled or not usable
            return enabled, edge or self.driver in (Driver.POLICY, Driver.RETURN)
        if cfg.mode == "toggle":
            edge = usable and (reading.toggles - device.toggles) % 2 == 1
            device.toggles = reading.toggles
            return (not driving if edge else driving), edge
        strong = usable and reading.norm > cfg.th_on
        device.above = device.above + 1 if strong else 0
        if reading.norm >= cfg.th_off and usable:
            device.below_since = None
        elif device.below_since is None:
            device.below_since = now
        if driving:
            released = device.below_since is not None and now - device.below_since >= cfg.hold_ms * 1e-3 - 1e-9
            return not released, False
        return device.above >= cfg.n_on, device.above >= cfg.n_on

    def _watch(self, now: float, reading: Reading, alive: bool) -> str:
        """Drift: an analogue device whose deflection does not change is not being held by a person."""
        cfg, device = self.settings, self._device
        if not alive:
            return "device lost"
        if cfg.mode != "implicit":
            return ""
        if reading.norm != device.norm or reading.norm <= cfg.th_on:
            device.norm, device.same_since, device.ignored = reading.norm, now, False
        elif now - device.same_since > cfg.stuck_s:
            device.ignored = True
        return "device drifts or is stuck; it is ignored until it moves" if device.ignored else ""


class Clutch:
    """Absolute devices (leader arm, tracked hand): motion relative to where both were at the takeover.

    Args:
        ramp_s: the gain rises from 0 to 1 over this time, so that nothing jumps.
    """

    def __init__(self, ramp_s: float = 0.2) -> None:
        self._ramp = ramp_s
        self._lead = self._robot = np.zeros(0)
        self._since = -math.inf

    def engage(self, lead: np.ndarray, robot: np.ndarray, now: float) -> None:
        """Latch (D,) poses of leader and robot at the takeover."""
        self._lead, self._robot, self._since = np.array(lead, float), np.array(robot, float), now

    def target(self, lead: np.ndarray, now: float) -> np.ndarray:
        """(D,) where the robot should be: its latched pose plus the leader's motion since then.

        Raises:
            ValueError: not engaged, or another number of axes.
        """
        if np.shape(lead) != self._lead.shape:
            raise ValueError(f"lead has shape {np.shape(lead)}, expected {self._lead.shape}; engage the clutch first")
        gain = 1.0 if self._ramp <= 0.0 else float(np.clip((now - self._since) / self._ramp, 0.0, 1.0))
        return self._robot + gain * (np.asarray(lead, float) - self._lead)
