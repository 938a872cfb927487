"""Times and tolerances of the safety supervisor, with the defaults of the specification."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

ESTOP_ACTIONS = ("brake", "zero", "halt")
PLAUSIBLE = {
    "state_timeout": 1.0,
    "command_timeout": 1.0,
    "start_tolerance": 0.5,
    "lead_soft": 0.5,
    "lead_fault": 1.0,
    "lead_fault_time": 2.0,
    "hold_tolerance": 0.5,
    "freeze_time": 2.0,
    "rest_velocity": 0.2,
    "limit_slack": 0.2,
    "jump_factor": 20.0,
    "velocity_factor": 5.0,
    "force_factor": 5.0,
}
"""Largest number of a setting that is believed without being asked about: beyond it the watch is as good as off."""


def implausible(values: Mapping[str, float], confirmed: Collection[str]) -> str:
    """What is wrong with the first number that is beyond what is plausible and not confirmed, or ""."""
    for name, most in PLAUSIBLE.items():
        if name in values and values[name] > most and name not in confirmed:
            return (
                f"{name} is {values[name]:g}, more than {most:g}: with it the supervisor would hardly watch; give "
                f"less, or, if it is meant, add it to the parameter confirmed: [{name}]"
            )
    return ""


@dataclass(frozen=True)
class SafetySettings:
    """All numbers SI.

    Args:
        rate: ticks of `filter` per second.
        state_timeout: largest age of the robot's state.
        command_timeout: largest age of a command.
        settle_time: how long inputs must be fresh before motion.
        start_tolerance: largest distance of a first command from the robot [rad].
        lead_soft: how far commands may run ahead of the robot [rad]; above the largest speed times the robot's lag.
        lead_fault: distance that is a fault when it lasts `lead_fault_time` [rad].
        lead_fault_time: see lead_fault; also how long a joint may stand at lead_soft without moving.
        hold_tolerance: how far a robot that is told to stay may go from there, while ARMED [rad]; further is a fault.
        freeze_way: way that is commanded or told by the velocities while all positions and velocities stay the same bit
            for bit under new stamps; more of it and of the robot's stiction, in `freeze_time` of motion, is a frozen
            driver [rad].
        freeze_time: see freeze_way; above the robot's dead time.
        rest_velocity: below this a joint is at rest [rad/s].
        max_rearm_per_minute: soft stops in 60 s before a lost command becomes a fault.
        estop_action: `brake` at the largest deceleration, `zero` velocity at once, `halt` publishing.
        future_tolerance: how far a stamp may lie ahead of now.
        estop_clear_time: how long the e-stop must be released before a reset.
        limit_slack: measured positions may lie outside the hard limits by this much [rad], unless a joint says more.
        jump_factor: a state that moved faster than this times the largest speed is a jump.
        velocity_factor: measured speed above this times the largest one is a fault; likewise effort.
        force_factor: measured force above this times the RobotSpec's `force` in 3 samples is a fault.
        overrun_ticks: ticks missed in a row that are a fault.
        allow_untimed_controller: accept velocity mode on a controller without a timeout.

    Raises:
        ValueError: names the setting.
    """

    rate: float = 100.0
    state_timeout: float = 0.1
    command_timeout: float = 0.1
    settle_time: float = 0.5
    start_tolerance: float = 0.1
    lead_soft: float = 0.1
    lead_fault: float = 0.3
    lead_fault_time: float = 0.2
    hold_tolerance: float = 0.05
    freeze_way: float = 0.005
    freeze_time: float = 0.2
    rest_velocity: float = 0.02
    max_rearm_per_minute: int = 6
    estop_action: str = "brake"
    future_tolerance: float = 0.05
    estop_clear_time: float = 0.5
    limit_slack: float = 0.0087
    jump_factor: float = 3.0
    velocity_factor: float = 1.5
    force_factor: float = 1.5
    overrun_ticks: int = 5
    allow_untimed_controller: bool = False

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "estop_action":
                if value not in ESTOP_ACTIONS:
                    raise ValueError(f"estop_action is {value!r}, expected one of {', '.join(ESTOP_ACTIONS)}")
            elif not isinstance(value, bool) and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{item.name} is {value}, expected a finite number > 0")
        if self.lead_soft >= self.lead_fault:
            raise ValueError(f"lead_soft is {self.lead_soft}, expected below lead_fault = {self.lead_fault}")
