"""The rules of the data model. Every violation names the first offending index and how to repair it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robot_rl.advantage.derive import ends_of, rows_where
from robot_rl.advantage.tables import StepTable

MISSING = (None, "zero", "last_value")


@dataclass(frozen=True)
class BatchRepairs:
    """What validation counted instead of refusing.

    Attributes:
        both_flags: rows both terminated and truncated, treated as terminated.
        unscorable: episodes with a NaN reward or outcome.
        missing_bootstrap: cuts whose successor value was replaced as `missing_bootstrap` says.
        turns_given: False if every clock row became a turn of its own for want of turn ids.
    """

    both_flags: int = 0
    unscorable: int = 0
    missing_bootstrap: int = 0
    turns_given: bool = True


def check_steps(
    steps: StepTable, gamma: float | None, missing_bootstrap: str | None
) -> tuple[StepTable, BatchRepairs, Tensor]:
    """Check the step table and complete it: boundaries, missing bootstraps, rows of unscorable episodes.

    Args:
        steps: tensors; `boundary` is ignored and computed.
        gamma: if given, `discount` must equal gamma^k.
        missing_bootstrap: None (error), "zero" or "last_value".

    Returns:
        (completed steps, report, (E,) bool unscorable episodes).

    Raises:
        ValueError: a rule is broken; the message names the first offending index.
    """
    if missing_bootstrap not in MISSING:
        raise ValueError(f"missing_bootstrap is '{missing_bootstrap}', expected None, 'zero' or 'last_value'")
    _check_lengths(steps)
    start, end = _check_episodes(steps.episode_id)
    _check_turns(steps)
    row = _first(steps.k < 1)
    if row is not None:
        raise ValueError(f"k is {int(steps.k[row])} at row {row}, expected at least 1 base tick per row")
    if steps.discount is not None and gamma is not None:
        row = _first(~((steps.discount - float(gamma) ** steps.k.double()).abs() <= 1e-6))
        if row is not None:
            raise ValueError(
                f"discount is {float(steps.discount[row]):g} at row {row}, expected gamma^k = "
                f"{gamma ** int(steps.k[row])}; omit gamma for data with discounts of their own"
            )
    both = steps.terminated & steps.truncated
    truncated = steps.truncated & ~steps.terminated
    last = _last_clock_rows(steps, start, end)
    boundary = torch.zeros_like(both)
    boundary[last] = True
    _check_interior(steps, last)
    steps = replace(steps, truncated=truncated, boundary=boundary)
    steps, replaced = _check_values(steps, last, end, missing_bootstrap)
    hole = ~torch.isfinite(steps.reward)
    infinite = _first(hole & ~torch.isnan(steps.reward))
    if infinite is not None:
        raise ValueError(
            f"reward is {float(steps.reward[infinite])} at row {infinite}, expected a finite number or NaN"
        )
    unscorable = torch.zeros_like(start, dtype=torch.bool)
    unscorable[steps.episode_id[hole].long()] = True
    if hole.any():
        steps = replace(steps, reward=torch.where(hole, 0.0, steps.reward))
    return steps, BatchRepairs(int(both.sum()), int(unscorable.sum()), replaced), unscorable


def _check_lengths(steps: StepTable) -> None:
    shape = tuple(steps.reward.shape)
    if len(shape) != 1 or shape[0] == 0:
        raise ValueError(f"reward has shape {shape}, expected (N,) with at least one row")
    columns = {**vars(steps), **{f"extras['{name}']": x for name, x in steps.extras.items()}}
    for name, column in columns.items():
        if column is None or isinstance(column, dict):
            continue
        if column.shape[:1] != shape or (column.ndim != 1 and not name.startswith("extras")):
            raise ValueError(f"{name} has shape {tuple(column.shape)}, expected {shape}: one entry per row of reward")


def _check_episodes(episode_id: Tensor) -> tuple[Tensor, Tensor]:
    """First and last row of each episode, observation rows included."""
    first = episode_id[:1]
    jump = torch.diff(episode_id, prepend=torch.where(first == 0, -1, first - 2))
    row = _first((jump < 0) | (jump > 1))
    if row is not None:
        raise ValueError(
            f"episode_id is {int(episode_id[row])} at row {row}, expected dense ids from 0 with the rows of an episode "
            "together; sort by (episode, time) and factorise with dense_ids"
        )
    start = rows_where(jump == 1)
    return start, ends_of(start, len(episode_id))


def _check_turns(steps: StepTable) -> None:
    rows = rows_where(steps.clock)
    turn, episode = steps.turn_id[rows], steps.episode_id[rows]
    row = _first(turn < 0)
    if row is not None:
        raise ValueError(
            f"row {int(rows[row])} is a clock row outside any turn, expected each to lie in exactly one turn"
        )
    jump = torch.diff(turn, prepend=torch.full_like(turn[:1], -1))
    row = _first((jump < 0) | (jump > 1))
    if row is not None:
        raise ValueError(
            f"turn_id is {int(turn[row])} at row {int(rows[row])} after {int(turn[row - 1]) if row else 'the start'}: "
            "turns overlap, are split or not dense; expected ids from 0 that grow by one at each new turn"
        )
    row = _first((jump == 0) & (torch.diff(episode, prepend=episode[:1]) != 0))
    if row is not None:
        raise ValueError(
            f"turn {int(turn[row])} continues into another episode at row {int(rows[row])}, expected a new turn"
        )


def _last_clock_rows(steps: StepTable, start: Tensor, end: Tensor) -> Tensor:
    rows = rows_where(steps.clock)
    position = torch.searchsorted(rows, end, right=True) - 1
    last = rows[position.clamp(min=0)] if len(rows) else torch.full_like(start, -1)
    episode = _first((position < 0) | (last < start))
    if episode is not None:
        raise ValueError(
            f"episode {episode} has no clock row (rows {int(start[episode])} to {int(end[episode])}); leave it out"
        )
    return last


def _check_interior(steps: StepTable, last: Tensor) -> None:
    flagged = rows_where(torch.logical_or(steps.terminated, steps.truncated))
    episode = steps.episode_id[flagged].long()
    row = _first(flagged < last[episode])
    if row is not None:
        raise ValueError(
            f"row {int(flagged[row])} ends its episode {int(episode[row])}, which goes on to row "
            f"{int(last[episode[row]])}; split fragments at every terminated or truncated row"
        )


def _check_values(steps: StepTable, last: Tensor, end: Tensor, missing_bootstrap: str | None) -> tuple[StepTable, int]:
    value = steps.value
    if value is None:
        return steps, 0
    row = _first(~torch.isfinite(value) & steps.clock)
    if row is not None:
        raise ValueError(f"value is {float(value[row])} at row {row}, expected a finite number on every clock row")
    given = steps.next_value
    next_value = torch.full_like(value, torch.nan) if given is None else given.clone()
    # The end may sit on an observation row behind the last decision; so does the value of the successor then.
    flagged = rows_where(torch.logical_or(steps.terminated, steps.truncated))
    behind = torch.full_like(end, -1).scatter_reduce(0, steps.episode_id[flagged].long(), flagged, "amax")
    after = next_value[torch.where(behind < 0, end, behind)]
    next_value[last] = torch.where(torch.isfinite(after), after, next_value[last])
    done = torch.zeros_like(end).index_add(0, steps.episode_id.long(), steps.terminated.long()) > 0
    missing = ~done & ~torch.isfinite(next_value[last])
    episode = _first(missing)
    if episode is not None:
        if missing_bootstrap is None:
            raise ValueError(
                f"next_value is missing at row {int(last[episode])}, where episode {episode} was cut without "
                "terminating; give the value of the true successor, or name missing_bootstrap='zero' or 'last_value'"
            )
        at = last[missing]
        next_value[at] = torch.zeros_like(value[at]) if missing_bootstrap == "zero" else value[at]
    return replace(steps, next_value=next_value), int(missing.sum())


def _first(mask: Tensor) -> int | None:
    hits = rows_where(mask)
    return int(hits[0]) if len(hits) else None
