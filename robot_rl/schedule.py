"""When a run does what, and what an evaluation is to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from robot_rl.types import Metrics


@dataclass(frozen=True)
class Schedule:
    """When a run does what, in the unit in which its loop counts.

    Attributes:
        total: where it ends.
        log_every: between rows of metrics; 0 = whenever the loop calls.
        eval_every: between evaluations; 0 = only at the end.
        eval_episodes: of an evaluation in mid-run.
        final_episodes: of the evaluation at the end.
        stop_success: stop once an evaluation over `final_episodes` reaches this success rate; None = never.
        checkpoint_every: between checkpoints; 0 = only at the end and on interruption.
        keep_checkpoints: how many stay.
        unit: name of what is counted.

    Raises:
        ValueError: a number is out of range.
    """

    total: int
    log_every: int = 0
    eval_every: int = 0
    eval_episodes: int = 10
    final_episodes: int = 10
    stop_success: float | None = None
    checkpoint_every: int = 0
    keep_checkpoints: int = 2
    unit: str = "step"

    def __post_init__(self) -> None:
        for name in ("log_every", "eval_every", "checkpoint_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 (only at the end) or more")
        for name in ("eval_episodes", "final_episodes", "keep_checkpoints"):
            if getattr(self, name) < 1:
                more = "; eval_every=0 leaves evaluations to the end alone" if "episodes" in name else ""
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 or more{more}")
        if self.total < 1:
            raise ValueError(f"the run has {self.total} {self.unit}s in all, expected 1 or more")

    def passed(self, period: int, before: int, after: int) -> bool:
        """Whether a multiple of `period` was reached or passed."""
        return period > 0 and after // period > before // period


class Result(Protocol):
    """What an evaluation found."""

    def metrics(self) -> Metrics:
        """Under names that begin with eval/."""
        ...

    def numbers(self) -> dict[str, Any]:
        """Of every episode, for evaluation.json."""
        ...
