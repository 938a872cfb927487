"""Where metrics go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from robot_rl.types.data import Metrics

Callback = Callable[[int, Metrics], object]
"""(step, metrics) of every row that is recorded; False ends the run in good order."""


class Tracker(Protocol):
    """Where metrics go. Names: rollout/return, train/critic_loss, eval/success, time/sps."""

    def log(self, metrics: Metrics, step: int) -> None:
        """Write one row of metrics at an environment step."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...
