"""The four tables of a batch: steps, turns, segments and episodes.

One record has two readings. A step is a control tick or a token; a turn is one decision (an action chunk, or an
utterance); a segment is an option or sub-goal period; an episode is a contiguous fragment of a trial or dialogue.
Nothing in the library branches on the reading.

Columns are NumPy arrays or torch tensors, all of one kind. Ids are dense int32 starting at 0 (`dense_ids` makes them).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T", "Steps", "Turns", "SegmentTable", "EpisodeTable")


@dataclass(frozen=True)
class Steps:
    """One row per control tick or token, sorted by (episode, time).

    Attributes:
        reward: (N,) produced by this step.
        terminated: (N,) bool, true end: no bootstrap.
        truncated: (N,) bool, cut by a limit or an abort of unknown outcome: bootstrap.
        boundary: (N,) bool, terminated, truncated or last clock row of the fragment.
        clock: (N,) bool, a decision of the MDP; False for observation tokens and sensor-only ticks.
        own: (N,) bool, chosen by the trained policy; False = foreign row.
        loss_mask: (N,) bool, enters the policy loss.
        k: (N,) int32, duration in base ticks, at least 1.
        episode_id: (N,) int32 index into EpisodeTable.
        turn_id: (N,) int32 index into Turns; -1 on rows outside any turn (only where `clock` is False).
        segment_id: (N,) int32 index into SegmentTable, or None.
        value: (N,) V(s_t) before the step, or None without a critic.
        next_value: (N,) V of the true successor before any reset, read only at boundaries; None = not known.
        discount: (N,) used in place of gamma^k, or None.
        logp_behaviour, logp_prox, logp_ref, logp_teacher: (N,) of the taken action, NaN = unknown, or None.
        entropy: (N,) of the policy at this row, or None.
        policy_version: (N,) int32 optimiser version that generated the row, or None.
        extras: further columns of length N.
    """

    reward: Any
    terminated: Any
    truncated: Any
    boundary: Any
    clock: Any
    own: Any
    loss_mask: Any
    k: Any
    episode_id: Any
    turn_id: Any
    segment_id: Any = None
    value: Any = None
    next_value: Any = None
    discount: Any = None
    logp_behaviour: Any = None
    logp_prox: Any = None
    logp_ref: Any = None
    logp_teacher: Any = None
    entropy: Any = None
    policy_version: Any = None
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Turns:
    """One row per decision.

    Attributes:
        start: (U,) int32 step index of the first clock row.
        end: (U,) int32 step index of the last clock row, inclusive.
        episode_id: (U,) int32.
        turn_index: (U,) int32 position in the episode.
        own_turn_index: (U,) int32 position among the turns of the same actor in the episode.
        actor_id, role_id: (U,) int32.
        anchor_key: (U,) int64 bit pattern of the hash of the observation at the turn's start; 0 = none.
        turn_reward: (U,) in addition to the rewards of the steps, or None.
        void: (U,) bool, neither an executable action nor an answer.
        wall_time: (U,) seconds, or None.
        switch: (U,) bool, the policy decided here to start a new segment, or None.
    """

    start: Any
    end: Any
    episode_id: Any
    turn_index: Any
    own_turn_index: Any
    actor_id: Any
    role_id: Any
    anchor_key: Any
    void: Any
    turn_reward: Any = None
    wall_time: Any = None
    switch: Any = None


@dataclass(frozen=True)
class SegmentTable:
    """One row per option or sub-goal period.

    Attributes:
        start, end: (S,) int32 first and last clock row, inclusive.
        episode_id: (S,) int32.
        option_id: (S,) int32, -1 = unknown.
        running_at_cut: (S,) bool, the option was still running when the fragment was cut.
    """

    start: Any
    end: Any
    episode_id: Any
    option_id: Any
    running_at_cut: Any


@dataclass(frozen=True)
class EpisodeTable:
    """One row per fragment.

    Attributes:
        start, end: (E,) int32 first and last row of the step table, inclusive, observation rows included.
        trial_id: (E,) int32; two fragments of one trial share it.
        group_id: (E,) int32 rollouts from the same start state; -1 = outside group statistics.
        task_id, game_id: (E,) int32.
        seed: (E,) int64.
        outcome: (E,) score of the episode, NaN = unscorable.
        success: (E,) float 0, 1 or NaN.
        n_turns: (E,) int32.
    """

    start: Any
    end: Any
    trial_id: Any
    group_id: Any
    task_id: Any
    game_id: Any
    seed: Any
    outcome: Any
    success: Any
    n_turns: Any


def map_table(table: T, change: Any) -> T:
    """The table with `change(column)` in place of every column that is present, extras included."""
    new = {}
    for item in fields(table):
        column = getattr(table, item.name)
        if isinstance(column, dict):
            new[item.name] = {name: change(x) for name, x in column.items()}
        elif column is not None:
            new[item.name] = change(column)
    return replace(table, **new)


def dense_ids(key: Any) -> np.ndarray:
    """Dense int32 ids of arbitrary keys (numbers, strings, negative ids), numbered by first appearance.

    Args:
        key: (M,) array or sequence.

    Returns:
        (M,) int32 in 0 .. number of distinct keys - 1.
    """
    _, first, inverse = np.unique(np.asarray(key), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
    return rank[inverse.reshape(-1)]
