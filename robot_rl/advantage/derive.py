"""Turn, segment and episode tables derived from the ids of the step table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import torch

from robot_rl.advantage.kinds import Array
from robot_rl.advantage.tables import EpisodeTable, SegmentTable, StepTable, TurnTable


def turn_table(steps: StepTable, columns: Mapping[str, object]) -> TurnTable:
    """Turn table of validated steps.

    Args:
        steps: NumPy columns, validated.
        columns: (U,) columns by name: actor_id, role_id, anchor_key, void, turn_reward, wall_time, switch.

    Returns:
        The table; actor and role 0, no anchor and not void where nothing is given.

    Raises:
        ValueError: an unknown column, or one whose length is not the number of turns.
    """
    start, end, ids = spans(steps.turn_id, steps.clock)
    count = len(ids)
    given = _columns(
        columns, TurnTable, count, "turn", taken=("start", "end", "episode_id", "turn_index", "own_turn_index")
    )
    episode = steps.episode_id[start]
    actor = given.get("actor_id", np.zeros(count, np.int32)).astype(np.int32)
    return TurnTable(
        start=start,
        end=end,
        episode_id=episode,
        turn_index=_position(episode),
        own_turn_index=_position(episode, actor),
        actor_id=actor,
        role_id=given.get("role_id", np.zeros(count, np.int32)).astype(np.int32),
        anchor_key=given.get("anchor_key", np.zeros(count, np.int64)).astype(np.int64),
        void=given.get("void", np.zeros(count, np.bool_)).astype(np.bool_),
        turn_reward=_float(given.get("turn_reward"), steps.reward.dtype),
        wall_time=_float(given.get("wall_time"), steps.reward.dtype),
        switch=given.get("switch"),
    )


def segment_table(steps: StepTable, columns: Mapping[str, object]) -> SegmentTable | None:
    """Segment table, or None without segment ids.

    Args:
        steps: NumPy columns, validated.
        columns: (S,) columns by name: option_id, running_at_cut.

    Returns:
        The table; options unknown and not running at the cut where nothing is given.

    Raises:
        ValueError: ids that are not dense and growing, a segment over two episodes, or an unknown column.
    """
    if steps.segment_id is None:
        return None
    start, end, ids = spans(steps.segment_id, steps.clock)
    if not np.array_equal(ids, np.arange(len(ids))):
        row = int(start[np.flatnonzero(ids != np.arange(len(ids)))[0]])
        raise ValueError(f"segment_id is {steps.segment_id[row]} at row {row}, expected ids from 0 that grow by one")
    crossing = np.flatnonzero(steps.episode_id[start] != steps.episode_id[end])
    if crossing.size:
        row = int(end[crossing[0]])
        raise ValueError(f"segment {crossing[0]} reaches into another episode at row {row}, expected a new segment")
    given = _columns(columns, SegmentTable, len(ids), "segment", taken=("start", "end", "episode_id"))
    return SegmentTable(
        start=start,
        end=end,
        episode_id=steps.episode_id[start],
        option_id=given.get("option_id", np.full(len(ids), -1)).astype(np.int32),
        running_at_cut=given.get("running_at_cut", np.zeros(len(ids))).astype(np.bool_),
    )


def episode_table(
    steps: StepTable, turns: TurnTable, unscorable: np.ndarray, columns: Mapping[str, object]
) -> EpisodeTable:
    """Episode table.

    Args:
        steps: NumPy columns, validated.
        turns: their turn table.
        unscorable: (E,) bool, episodes whose reward held a NaN; their outcome becomes NaN.
        columns: (E,) columns by name: trial_id, group_id, task_id, game_id, seed, outcome, success.

    Returns:
        The table; without given columns every fragment is a trial of its own, in no group, of task and game 0, and its
        outcome is the sum of its step and turn rewards.

    Raises:
        ValueError: an unknown column, or one whose length is not the number of episodes.
    """
    start, end, ids = spans(steps.episode_id, np.ones(len(steps.reward), np.bool_))
    count = len(ids)
    given = _columns(columns, EpisodeTable, count, "episode", taken=("start", "end", "n_turns"))
    total = np.bincount(steps.episode_id, steps.reward, count)
    if turns.turn_reward is not None:
        total = total + np.bincount(turns.episode_id, np.nan_to_num(turns.turn_reward), count)
        unscorable = unscorable | (np.bincount(turns.episode_id, np.isnan(turns.turn_reward), count) > 0)
    outcome = np.where(unscorable, np.nan, given.get("outcome", total)).astype(steps.reward.dtype)
    whole = {name: np.zeros(count, np.int32) for name in ("task_id", "game_id")}
    whole |= {"trial_id": np.arange(count, dtype=np.int32), "group_id": np.full(count, -1, np.int32)}
    return EpisodeTable(
        start=start,
        end=end,
        seed=given.get("seed", np.zeros(count)).astype(np.int64),
        outcome=outcome,
        success=given.get("success", np.full(count, np.nan)).astype(steps.reward.dtype),
        n_turns=np.bincount(turns.episode_id, minlength=count).astype(np.int32),
        **{name: given.get(name, default).astype(np.int32) for name, default in whole.items()},
    )


def spans(ids: np.ndarray, clock: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First and last row and the id of every run of equal ids over the clock rows.

    Returns:
        (start, end, id), all int32, in order of time.
    """
    rows = np.flatnonzero(clock)
    here = ids[rows]
    first = np.flatnonzero(np.diff(here, prepend=here[:1] - 1))
    last = np.append(first[1:], len(rows)) - 1
    return rows[first].astype(np.int32), rows[last].astype(np.int32), here[first]


def _position(episode: np.ndarray, actor: np.ndarray | None = None) -> np.ndarray:
    """Position of each turn in its episode, counted per actor if actors are given."""
    if actor is not None:
        order = np.lexsort((np.arange(len(episode)), actor, episode))
        out = np.empty(len(episode), np.int32)
        out[order] = _position_of_pairs(episode[order], actor[order])
        return out
    return _position_of_pairs(episode, np.zeros_like(episode))


def _position_of_pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    new = np.ones(len(first), np.bool_)
    new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    start = np.flatnonzero(new)
    length = np.diff(np.append(start, len(first)))
    return (np.arange(len(first)) - np.repeat(start, length)).astype(np.int32)


def _columns(
    columns: Mapping[str, object], table: type, count: int, name: str, *, taken: tuple[str, ...]
) -> dict[str, np.ndarray]:
    known = [item.name for item in fields(table) if item.name not in taken]
    out = {}
    for key, column in columns.items():
        if key not in known:
            raise ValueError(f"unknown {name} column '{key}'; expected one of {', '.join(known)}")
        if column is None:
            continue
        column = np.asarray(column.detach().cpu() if isinstance(column, torch.Tensor) else column)
        if column.shape != (count,):
            raise ValueError(f"{name} column '{key}' has shape {column.shape}, expected ({count},): one per {name}")
        out[key] = column
    return out


def _float(column: np.ndarray | None, kind: Array) -> np.ndarray | None:
    return None if column is None else column.astype(kind, copy=False)
