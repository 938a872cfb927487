"""What a loop expects of a learner and its policy, checked in the call that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from robot_rl.state import Calls
from robot_rl.types import Action, AnyLearner, Metrics, Obs, Policy

Tick = Callable[[int, Metrics], bool]
"""Called by a loop with (how far it is, metrics) whenever something is due; True stops the loop."""

Due = Callable[[int, int], bool]
"""(how far the loop was before a step, and after it) -> whether something is due now; asked after every step."""


def every(period: int) -> Due:
    """Due whenever a multiple of `period` is reached or passed."""
    return lambda before, after: after // period > before // period


def rows_per_batch(learner: AnyLearner) -> int:
    """Rows of one sample that a learner of transitions needs (`Needs.rows`).

    Raises:
        ValueError: it is absent or no positive number.
    """
    size = learner.need.rows
    if not isinstance(size, int) or size < 1:
        raise ValueError(
            f"{type(learner).__name__} needs batches of {size!r} rows, expected a number of at least 1: its `needs` "
            "returns Needs(rows=...)"
        )
    return size


def batches_for(learner: AnyLearner, batches: Iterator[Any]) -> Iterator[Any]:
    """Batches where the learner's networks live; logs, replay and rollouts lie in main memory."""
    place = learner.device
    return batches if str(place) == "cpu" else (replace(batch, **_move(vars(batch), place)) for batch in batches)


def _move(columns: Mapping[str, object], place: str | torch.device) -> dict[str, object]:
    """Columns with all tensors on a device; those that lie there are taken as they are."""
    moved: dict[str, object] = {}
    for name, value in columns.items():
        if isinstance(value, dict):
            moved[name] = _move(value, place)
        else:
            moved[name] = value.to(place) if isinstance(value, torch.Tensor) else value
    return moved


def update_learner(learner: AnyLearner, batches: Iterator[Any], *, progress: float = 0.0) -> Metrics:
    """`learner.update(batches)` with batches on its device, told first which share of the run's steps is over.

    Raises:
        TypeError: what comes back are no metrics.
    """
    learner.set_progress(progress)
    metrics = learner.update(batches_for(learner, batches))
    if not isinstance(metrics, dict):
        raise TypeError(
            f"{type(learner).__name__}.update returned {type(metrics).__name__}, expected a dict of metrics, which may "
            "be empty"
        )
    return metrics


def choose(policy: Policy, obs: Obs, *, deterministic: bool = False) -> Action:
    """`policy.act(obs)`.

    Raises:
        TypeError: what comes back is no `Action`.
    """
    action = policy.act(obs, deterministic=deterministic)
    if not isinstance(action, Action):
        raise TypeError(
            f"{type(policy).__name__}.act returned {type(action).__name__}, expected robot_rl.types.Action(value)"
        )
    return action


def memory_of(policy: Policy) -> Calls | None:
    """What acting depends on beside the weights, as a part of a loop's state; None where there is nothing."""
    parts = policy.parts
    return None if parts.save is None or parts.restore is None else Calls(parts.save, parts.restore)
