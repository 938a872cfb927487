"""The rules of the data model. Every violation names the first offending index and how to repair it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from robot_rl.advantage.tables import Steps

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
    steps: Steps, gamma: float | None, missing_bootstrap: str | None
) -> tuple[Steps, BatchRepairs, np.ndarray]:
    """Check the step table and complete it: boundaries, missing bootstraps, rows of unscorable episodes.

    Args:
        steps: NumPy columns; `boundary` is ignored and computed.
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
        raise ValueError(f"k is {steps.k[row]} at row {row}, expected at least 1 base tick per row")
    if steps.discount is not None and gamma is not None:
        row = _first(~(np.abs(steps.discount - np.power(float(gamma), steps.k)) <= 1e-6))
        if row is not None:
            raise ValueError(
                f"discount is {steps.discount[row]} at row {row}, expected gamma^k = {gamma ** int(steps.k[row])}; "
                "omit gamma for data with discounts of their own"
            )
    both = steps.terminated & steps.truncated
    truncated = steps.truncated & ~steps.terminated
    last = _last_clock_rows(steps, start, end)
    boundary = np.zeros(len(both), np.bool_)
    boundary[last] = True
    _check_interior(steps, last)
    steps = replace(steps, truncated=truncated, boundary=boundary)
    steps, replaced = _check_values(steps, last, end, missing_bootstrap)
    hole = ~np.isfinite(steps.reward)
    infinite = _first(hole & ~np.isnan(steps.reward))
    if infinite is not None:
        raise ValueError(f"reward is {steps.reward[infinite]} at row {infinite}, expected a finite number or NaN")
    unscorable = np.zeros(len(start), np.bool_)
    unscorable[steps.episode_id[hole]] = True
    if hole.any():
        steps = replace(steps, reward=np.where(hole, steps.reward.dtype.type(0), steps.reward))
    return steps, BatchRepairs(int(both.sum()), int(unscorable.sum()), replaced), unscorable


def _check_lengths(steps: Steps) -> None:
    count = len(steps.reward)
    if steps.reward.ndim != 1 or count == 0:
        raise ValueError(f"reward has shape {steps.reward.shape}, expected (N,) with at least one row")
    columns = {**vars(steps), **{f"extras['{name}']": x for name, x in steps.extras.items()}}
    for name, column in columns.items():
        if column is None or isinstance(column, dict):
            continue
        if column.shape[:1] != (count,) or (column.ndim != 1 and not name.startswith("extras")):
            raise ValueError(f"{name} has shape {column.shape}, expected ({count},): one entry per row of reward")


def _check_episodes(episode_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    jump = np.diff(episode_id, prepend=np.int32(-1) if episode_id[0] == 0 else episode_id[0] - 2)
    row = _first((jump < 0) | (jump > 1))
    if row is not None:
        raise ValueError(
            f"episode_id is {episode_id[row]} at row {row}, expected dense ids from 0 with the rows of an episode "
            "together; sort by (episode, time) and factorise with dense_ids"
        )
    start = np.flatnonzero(jump == 1)
    return start, np.append(start[1:], len(episode_id)) - 1


def _check_turns(steps: Steps) -> None:
    rows = np.flatnonzero(steps.clock)
    turn, episode = steps.turn_id[rows], steps.episode_id[rows]
    row = _first(turn < 0)
    if row is not None:
        raise ValueError(f"row {rows[row]} is a clock row outside any turn, expected each to lie in exactly one turn")
    jump = np.diff(turn, prepend=np.int32(-1))
    row = _first((jump < 0) | (jump > 1))
    if row is not None:
        raise ValueError(
            f"turn_id is {turn[row]} at row {rows[row]} after {turn[row - 1] if row else 'the start'}: turns overlap, "
            "are split or not dense; expected ids from 0 that grow by one at each new turn"
        )
    row = _first((jump == 0) & (np.diff(episode, prepend=episode[:1]) != 0))
    if row is not None:
        raise ValueError(f"turn {turn[row]} continues into another episode at row {rows[row]}, expected a new turn")


def _last_clock_rows(steps: Steps, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    rows = np.flatnonzero(steps.clock)
    position = np.searchsorted(rows, end, side="right") - 1
    last = rows[np.maximum(position, 0)] if len(rows) else np.full(len(start), -1)
    episode = _first((position < 0) | (last < start))
    if episode is not None:
        raise ValueError(f"episode {episode} has no clock row (rows {start[episode]} to {end[episode]}); leave it out")
    return last


def _check_interior(steps: Steps, last: np.ndarray) -> None:
    flagged = np.flatnonzero(steps.terminated | steps.truncated)
    row = _first(flagged < last[steps.episode_id[flagged]])
    if row is not None:
        raise ValueError(
            f"row {flagged[row]} ends its episode {steps.episode_id[flagged[row]]}, which goes on to row "
            f"{last[steps.episode_id[flagged[row]]]}; split fragments at every terminated or truncated row"
        )


def _check_values(steps: Steps, last: np.ndarray, end: np.ndarray, missing_bootstrap: str | None) -> tuple[Steps, int]:
    if steps.value is None:
        return steps, 0
    row = _first(~np.isfinite(steps.value) & steps.clock)
    if row is not None:
        raise ValueError(f"value is {steps.value[row]} at row {row}, expected a finite number on every clock row")
    next_value = np.full_like(steps.value, np.nan) if steps.next_value is None else steps.next_value.copy()
    # The end may sit on an observation row behind the last decision; so does the value of the successor then.
    flagged = np.flatnonzero(steps.terminated | steps.truncated)
    source = end.copy()
    source[steps.episode_id[flagged]] = flagged
    done = np.add.reduceat(steps.terminated, np.append(0, end[:-1] + 1)) > 0
    next_value[last] = np.where(np.isfinite(next_value[source]), next_value[source], next_value[last])
    missing = ~done & ~np.isfinite(next_value[last])
    if missing.any():
        if missing_bootstrap is None:
            episode = int(np.flatnonzero(missing)[0])
            raise ValueError(
                f"next_value is missing at row {last[episode]}, where episode {episode} was cut without terminating; "
                "give the value of the true successor, or name missing_bootstrap='zero' or 'last_value'"
            )
        at = last[missing]
        next_value[at] = 0 if missing_bootstrap == "zero" else steps.value[at]
    return replace(steps, next_value=next_value), int(missing.sum())


def _first(mask: np.ndarray) -> int | None:
    hits = np.flatnonzero(mask)
    return int(hits[0]) if hits.size else None
