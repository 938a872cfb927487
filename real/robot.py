"""Contracts of the robot side: what is measured, what is commanded, and what the supervisor says about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np


class StaleState(RuntimeError):
    """No state has arrived within the robot's timeout."""


@dataclass(frozen=True)
class RobotState:
    """One measurement of the robot, in the joint order of its RobotSpec.

    Args:
        stamp: when it was acquired [s of the steady clock of this machine].
        position: (J,) [rad or m].
        velocity: (J,) [rad/s or m/s].
        effort: (J,) [N m or N], or None where the robot does not report it.
        wrench: (6,) force and torque at the tool [N, N m], or None.
        sensors: further readings by observation key.
    """

    stamp: float
    position: np.ndarray
    velocity: np.ndarray
    effort: np.ndarray | None = None
    wrench: np.ndarray | None = None
    sensors: dict[str, np.ndarray] = field(default_factory=dict)


class Command(NamedTuple):
    """What to do next, in physical units and the joint order of the RobotSpec.

    Args:
        stamp: stamp of the observation it was computed from [s of the steady clock].
        value: (J,) positions [rad] or velocities [rad/s], as the RobotSpec's command mode says; an empty array means
            "release": brake and hold.
        source: who asks: `policy`, `human`, `external` or a name of your own.
        seq: running number of the source.
        gains: (2, J) kp and kd that go out with the targets of pd mode; else None.
    """

    stamp: float
    value: np.ndarray
    source: str = "policy"
    seq: int = 0
    gains: np.ndarray | None = None


class Level(IntEnum):
    """How far the supervisor followed a command."""

    OK = 0
    CLIPPED = 1
    HOLD = 2
    STOP = 3


OK, CLIPPED, HOLD, STOP = Level  # a name of a module is found faster than a member by its Enum, in every tick


class Verdict(NamedTuple):
    """What the supervisor did with a command, and why.

    Args:
        level: OK as asked; CLIPPED into the limits; HOLD not followed, will follow by itself once the reason is gone;
            STOP latched until the operator rearms.
        reasons: of `limit`, `rate`, `lead`, `workspace`, `force`, `stale_state`, `stale_command`, `bad_state`,
            `bad_command`, `operator`, `start_mismatch`, `not_enabled`, `starting`, `stopping`, `tracking`, `internal`,
            `platform`.
        state: name of the state of the safety machine.
        fault: code of the first fault, "" without one.
        publish: whether the command may go to the hardware at all.
    """

    level: Level
    reasons: tuple[str, ...] = ()
    state: str = ""
    fault: str = ""
    publish: bool = True
