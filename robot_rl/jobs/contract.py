"""What a learner has to be, checked before it learns."""

from __future__ import annotations

from typing import Any

from robot_rl.checkpoint import check_state
from robot_rl.loops.contract import rows_per_batch
from robot_rl.types import Learner

CONSUMES = (
    "transitions",
    "rollout",
    "stale_rollout",
    "environment",
    "device_transitions",
    "device_rollout",
    "episodes",
)


def check_learner(learner: Learner[Any]) -> None:
    """Refuse a learner that would train and then could not be saved, or would be fed what it does not expect.

    Raises:
        ValueError: `consumes` names no loop, or `batch_size` is absent or no positive number.
        TypeError: the state holds what a checkpoint does not.
    """
    name, consumes = type(learner).__name__, getattr(learner, "consumes", None)
    if consumes not in CONSUMES:
        raise ValueError(f"{name}.consumes is {consumes!r}, expected one of {', '.join(CONSUMES)}")
    if consumes.endswith("transitions"):
        rows_per_batch(learner)
    if consumes != "environment":  # such a learner may have no networks before it has seen its environment
        check_state(learner.state_dict(), f"{name}.state_dict()")
        check_state(learner.policy.state_dict(), f"{name}.policy.state_dict()")
