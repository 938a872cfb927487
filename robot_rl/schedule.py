"""When a run does what, and what an evaluation is to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from robot_rl.types import Metrics, Options
from robot_rl.types.options import Count, Share, Whole


class Schedule(Options):
    """When a run does what, in the unit in which its loop counts."""

    total: Count
    """Where it ends."""
    log_every: Whole = 0
    """Between rows of metrics; 0 = whenever the loop calls."""
    eval_every: Whole = 0
    """Between evaluations; 0 = only at the end."""
    eval_episodes: Count = 10
    """Of an evaluation in mid-run."""
    final_episodes: Count = 10
    """Of the evaluation at the end."""
    stop_success: Share | None = None
    """Stop once an evaluation over `final_episodes` reaches this success rate; null = never."""
    checkpoint_every: Whole = 0
    """Between checkpoints; 0 = only at the end and on interruption."""
    keep_checkpoints: Count = 2
    """How many stay."""
    unit: str = "step"
    """Name of what is counted."""

    @classmethod
    def of(cls, settings: Options, total: int, unit: str = "step") -> Schedule:
        """What the options of a verb say of it under the same names.

        Raises:
            ValueError: a number is out of range.
        """
        said: dict[str, Any] = {name: value for name, value in settings if name in cls.model_fields}
        return cls(**said, total=total, unit=unit)

    def has_passed(self, period: int, before: int, after: int) -> bool:
        """Whether a multiple of `period` was reached or passed."""
        return period > 0 and after // period > before // period


class Result(Protocol):
    """What an evaluation found."""

    def metrics(self) -> Metrics:
        """Under names that begin with eval/."""
        ...

    def numbers(self) -> Mapping[str, object]:
        """Of every episode, for evaluation.json."""
        ...
