"""How a robot on legs begins and ends its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LegsSpec:
    """How legs begin and end, in pd mode.

    Args:
        stop: of a fault, an e-stop or a lost command: `damp`, or `sit`: go to the rest pose in `stop_seconds` first.
        stop_seconds: see stop.
        stand_seconds: from wherever the legs are to the home pose, after enabling.
        tilt: largest angle between the trunk and upright [rad]; beyond it the robot counts as fallen; None =
            not watched.
    """

    stop: str = "damp"
    stop_seconds: float = 3.0
    stand_seconds: float = 2.0
    tilt: float | None = 1.0
