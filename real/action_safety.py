"""The safety supervisor between whoever drives and a robot that takes actions: policy steps, human steps, simulation.

Actions in [-1, 1] become velocities of the axes that they move, pass the `SafetySupervisor` with its workspace, rate,
acceleration and jerk limits, watchdogs and latched stop, and become actions again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import JointSpec, RobotSpec
from robot_rl.real.core.supervisor import SafetySupervisor
from robot_rl.real.robot import Command, Level, RobotState
from robot_rl.types import IOSpec

BITS = (
    "limit",
    "rate",
    "lead",
    "workspace",
    "force",
    "stale_state",
    "stale_command",
    "bad_state",
    "bad_command",
    "operator",
    "start_mismatch",
    "not_enabled",
    "starting",
    "stopping",
    "tracking",
    "internal",
    "platform",
)
"""Reason of a verdict -> its bit in `ControlStep.safety_bits`."""


@dataclass(frozen=True)
class Axes:
    """Place of the first D actions, which are moves; see `tool` of the simulated worlds.

    Attributes:
        position: (D,) [m or rad].
        velocity: (D,).
        low: (D,) workspace.
        high: (D,).
        gripper: (G,) measured openings in units of their actions, which are the last; None where nobody measures.
    """

    position: np.ndarray
    velocity: np.ndarray
    low: np.ndarray
    high: np.ndarray
    gripper: np.ndarray | None = None


_TURN_SLACK = 0.1  # rad that a rotation may swing past its limit before that counts as a fault; moves have 0.03 m


@dataclass(frozen=True)
class SafetyLimits:
    """Limits of motion in the task space.

    Attributes:
        acceleration: of translations [m/s^2].
        jerk: of translations [m/s^3].
        turn_acceleration: of rotations [rad/s^2].
        turn_jerk: of rotations [rad/s^3].
        direct_rate: largest change per second of actions that are no moves (gripper, throttle), in units of [-1, 1].
        human_speed: factor on the speed limit for people; workspace and force limits are the same for everybody.
        bad_actions: non-finite actions in a row that latch a stop.

    Source: specification of human-in-the-loop learning, section 13 (defaults for 10 Hz delta control).
    """

    acceleration: float = 1.5
    jerk: float = 20.0
    turn_acceleration: float = 15.0
    turn_jerk: float = 200.0
    direct_rate: float = 20.0
    human_speed: float = 1.0
    bad_actions: int = 3

    def __post_init__(self) -> None:
        for name, value in self.__dict__.items():
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}, expected a finite number > 0")


@dataclass(frozen=True)
class Filtered:
    """What became of an action.

    Attributes:
        action: (A,) to execute.
        level: OK, CLIPPED, HOLD or STOP.
        bits: one bit per reason, in the order of BITS.
        reasons: the same in words.
        clip_frac: |asked - executed|_1 / |asked|_1.
        finite: False when the asked action was not.
    """

    action: np.ndarray
    level: Level
    bits: int
    reasons: tuple[str, ...]
    clip_frac: float
    finite: bool


class ActionSafety:
    """Filters actions; a stop is latched until a person resets it.

    Args:
        io: interface of the robot.
        axes: of its moves at the start, or None for robots whose actions are no moves: rates, watchdogs and stops
            still apply, a workspace does not.
        limits: of motion.
        force: largest force at the tool [N], or None.
    """

    def __init__(
        self, io: IOSpec, axes: Axes | None, limits: SafetyLimits | None = None, *, force: float | None = None
    ) -> None:
        self._io, self._limits = io, limits or SafetyLimits()
        hz, self._period = io.control_hz, 1.0 / io.control_hz
        self._moves = 0 if axes is None else len(axes.low)
        span = np.array(io.action_high, float) - np.array(io.action_low, float)
        scale = np.ones(io.action_dim)
        scale[: self._moves] = 0.5 * span[: self._moves] * hz  # physical speed at action 1
        self._scale = scale
        joints = []
        for i, (name, unit) in enumerate(zip(io.action_names, io.action_units)):
            if axes is None or i >= self._moves:
                rate = self._limits.direct_rate
                joints.append(JointSpec(name, velocity=1.0, acceleration=rate, effort=1.0, continuous=True))
                continue
            turn = unit.startswith("rad")
            joints.append(
                JointSpec(
                    name,
                    velocity=float(scale[i]) * max(1.0, self._limits.human_speed),
                    acceleration=self._limits.turn_acceleration if turn else self._limits.acceleration,
                    jerk=self._limits.turn_jerk if turn else self._limits.jerk,
                    effort=1.0,
                    limit_slack=_TURN_SLACK if turn else None,
                    lower=float(axes.low[i]),
                    upper=float(axes.high[i]),
                )
            )
        spec = RobotSpec(
            "actions",
            tuple(joints),
            command_mode="forward_velocity",
            controller_timeout=2.0 * self._period,
            dead_time=0.0,
            margin=1e-4,
            force=force,
        )
        self._settings = SafetySettings(
            rate=hz,
            state_timeout=2.5 * self._period,
            command_timeout=2.0 * self._period,
            settle_time=1.5 * self._period,
            velocity_factor=5.0,
            jump_factor=5.0,
            limit_slack=0.03,
            rest_velocity=0.05,
            freeze_time=1e9,  # never: a world that stands still is no frozen driver
            overrun_ticks=1000,  # the pilot holds long before that, see Pilot.wait
        )
        self.supervisor = SafetySupervisor(spec, self._settings)
        self._neutral = self._rest(io)
        self.last = self._neutral.copy()
        """(A,) what was let through last."""
        self._bad = self._sequence = 0

    @property
    def stopped(self) -> bool:
        """A stop is latched."""
        return self.supervisor.state in ("FAULT", "ESTOP") or bool(self.supervisor.faults)

    @property
    def stopped_by(self) -> str:
        """The fault that latched first, with what was measured and what was allowed; "" while nothing is latched."""
        code, numbers = next(iter(self.supervisor.numbers.items()), ("", ""))
        return f"{code} ({numbers})" if numbers else code

    def watch(self, axes: Axes | None, now: float) -> None:
        """Look at the robot without moving it: before an episode, and while nobody drives."""
        self.supervisor.filter(None, self._state(axes, now), now)

    def begin(self, gripper: np.ndarray | None, *, fresh: bool) -> None:
        """A new episode: while nobody drives, grippers stay where they are.

        Args:
            gripper: (G,) where they stand, in units of their actions; None where that is not measured.
            fresh: the robot was put at its start, where grippers that are not measured are open; else they are as they
                were told last.
        """
        if fresh:
            self.last = self._neutral.copy()
        if gripper is not None and np.isfinite(gripper).all():
            self.last[-len(gripper) :] = np.clip(gripper, -1.0, 1.0)

    def enable(self) -> list[str]:
        """Allow motion; returns what stands against it."""
        return self.supervisor.enable()

    def disable(self) -> None:
        """Brake and hold: between episodes."""
        self.supervisor.enable(False)

    def estop(self, pressed: bool = True) -> None:
        """Press or release the software e-stop; releasing clears nothing."""
        self.supervisor.estop("operator", pressed=pressed)

    def rearm(self) -> list[str]:
        """Clear a latched stop: a person's act. Returns what stands against it; `enable` comes after."""
        refused = self.supervisor.rearm()
        if not refused:
            self._bad = 0
        return refused

    def filter(
        self,
        action: np.ndarray,
        axes: Axes | None,
        now: float,
        *,
        moving: bool,
        human: bool,
        grip: np.ndarray | None = None,
    ) -> Filtered:
        """One tick.

        Args:
            action: (A,) asked for.
            axes: place of the robot now.
            now: [s].
            moving: somebody drives; False brakes and holds.
            human: a person drives (their speed may be higher).
            grip: (G,) where the grippers go while nobody drives, at `direct_rate` at most; None keeps them.
        """
        asked = np.asarray(action, float)
        finite = bool(np.isfinite(asked).all())
        self._bad = 0 if finite else self._bad + 1
        if self._bad >= self._limits.bad_actions:
            self.supervisor.report("cmd_nonfinite", f"{self._bad} actions in a row are not finite")
        value = np.zeros(0)  # release: brake and hold
        if moving and finite:
            top = self._limits.human_speed if human else 1.0
            value = np.clip(asked, -top, top)
            value[self._moves :] = np.clip(asked[self._moves :], -1.0, 1.0)
            value = value * self._scale
        self._sequence += 1
        command = Command(now, value, "human" if human else "policy", self._sequence)
        sent, verdict = self.supervisor.filter(command, self._state(axes, now), now)
        follows = moving and finite and verdict.level in (Level.OK, Level.CLIPPED)
        out = np.asarray(sent.value, float) / self._scale if sent.value.size == len(self._scale) else self._neutral
        out = np.clip(out, -1.0, 1.0)
        if not follows:  # axes without a place of their own: a gripper keeps its grip, a throttle goes to rest
            out = np.concatenate([out[: self._moves], self._resting(grip)])
        self.last = out
        reasons = verdict.reasons if finite else (*verdict.reasons, "bad_command")
        if follows and not reasons and np.abs(out - np.clip(asked, -1.0, 1.0)).max() > 1e-6:
            reasons = ("rate",)  # the limiter names the speed limit alone; what else changes a command is acceleration
        bits = sum(1 << BITS.index(reason) for reason in set(reasons) if reason in BITS)
        size = float(np.abs(asked).sum()) if finite else 0.0
        clip = float(np.abs(np.where(np.isfinite(asked), asked, 0.0) - out).sum())
        return Filtered(
            out.astype(np.float32), verdict.level, bits, reasons, clip / size if size > 1e-6 else 0.0, finite
        )

    def _state(self, axes: Axes | None, now: float) -> RobotState:
        position, velocity = np.zeros(len(self._scale)), np.zeros(len(self._scale))
        if axes is not None and self._moves:
            position[: self._moves], velocity[: self._moves] = axes.position, axes.velocity
        return RobotState(now, position, velocity)

    def _resting(self, grip: np.ndarray | None) -> np.ndarray:
        keep = np.array(["grip" in name for name in self._io.action_names[self._moves :]], bool)
        held = self.last[self._moves :].copy()
        if grip is not None:
            most = self._limits.direct_rate * self._period
            held[-len(grip) :] += np.clip(np.clip(grip, -1.0, 1.0) - held[-len(grip) :], -most, most)
        return np.where(keep, held, self._neutral[self._moves :])

    @staticmethod
    def _rest(io: IOSpec) -> np.ndarray:
        """(A,) the action nearest to zero in physical units; a gripper starts open."""
        low, high = np.array(io.action_low, float), np.array(io.action_high, float)
        with np.errstate(invalid="ignore", divide="ignore"):
            zero = np.clip(-1.0 + 2.0 * (0.0 - low) / (high - low), -1.0, 1.0)
        zero = np.where(np.isfinite(zero), zero, 0.0)
        return np.where(["grip" in name for name in io.action_names], 1.0, zero)
