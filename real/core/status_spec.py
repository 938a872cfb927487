"""What a robot's own driver says of its state in single values: modes, brakes, whether its program runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StatusSpec:
    """One value that a driver tells, and what it means here.

    Args:
        topic: its name.
        type: of its messages, from any package that is installed where the supervisor runs.
        good: values with which the robot may move; any other blocks it, and is the fault `robot_status` in motion.
        estop: values that are an emergency stop for as long as they last.
        field: of the message; parts of parts with a dot.
        timeout: longest silence of a value that is repeated all the time [s]; None = it is told when it changes, and
            kept for who comes later.

    Raises:
        ValueError: no good value, or one that is an emergency stop, too; or a timeout that is no time.
    """

    topic: str
    type: str
    good: tuple[Any, ...]
    estop: tuple[Any, ...] = ()
    field: str = "data"
    timeout: float | None = None

    def __post_init__(self) -> None:
        for key, values in (("good", self.good), ("estop", self.estop)):
            if not isinstance(values, (list, tuple)):
                raise ValueError(f"status of {self.topic}: {key} is {values!r}, expected a list of values")
            object.__setattr__(self, key, tuple(values))
        both = set(self.good) & set(self.estop)
        if not self.good or both:
            what = f"{min(both)} is in good and in estop" if both else "good is empty"
            raise ValueError(f"status of {self.topic}: {what}; good lists the values with which the robot may move")
        if self.timeout is not None and not 0.0 < self.timeout < math.inf:
            raise ValueError(f"status of {self.topic}: timeout is {self.timeout}, expected seconds > 0, or null")
