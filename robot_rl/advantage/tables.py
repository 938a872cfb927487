"""The four tables of a batch: steps, turns, segments and episodes.

One record has two readings. A step is a control tick or a token; a turn is one decision (an action chunk, or an
utterance); a segment is an option or sub-goal period; an episode is a contiguous fragment of a trial or dialogue.
Nothing in the library branches on the reading.

Columns are NumPy arrays or torch tensors, all of one kind. Ids are dense int32 starting at 0 (`dense_ids` makes them).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from robot_rl.advantage.kinds import Array

T = TypeVar("T", "StepTable", "TurnTable", "SegmentTable", "EpisodeTable")


@dataclass(frozen=True)
class StepTable:
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
        turn_id: (N,) int32 index into TurnTable; -1 on rows outside any turn (only where `clock` is False).
        segment_id: (N,) int32 index into SegmentTable, or None.
        value: (N,) V(s_t) before the step, or None without a critic.
        next_value: (N,) V of the true successor before any reset, read only at boundaries; None = not known.
        discount: (N,) used in place of gamma^k, or None.
        logp_behaviour, logp_prox, logp_ref, logp_teacher: (N,) of the taken action, NaN = unknown, or None.
        entropy: (N,) of the policy at this row, or None.
        policy_version: (N,) int32 optimiser version that generated the row, or None.
        extras: further columns of length N.
    """

    reward: Array
    terminated: Array
    truncated: Array
    boundary: Array
    clock: Array
    own: Array
    loss_mask: Array
    k: Array
    episode_id: Array
    turn_id: Array
    segment_id: Array | None = None
    value: Array | None = None
    next_value: Array | None = None
    discount: Array | None = None
    logp_behaviour: Array | None = None
    logp_prox: Array | None = None
    logp_ref: Array | None = None
    logp_teacher: Array | None = None
    entropy: Array | None = None
    policy_version: Array | None = None
    extras: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class TurnTable:
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

    start: Array
    end: Array
    episode_id: Array
    turn_index: Array
    own_turn_index: Array
    actor_id: Array
    role_id: Array
    anchor_key: Array
    void: Array
    turn_reward: Array | None = None
    wall_time: Array | None = None
    switch: Array | None = None


@dataclass(frozen=True)
class SegmentTable:
    """One row per option or sub-goal period.

    Attributes:
        start, end: (S,) int32 first and last clock row, inclusive.
        episode_id: (S,) int32.
        option_id: (S,) int32, -1 = unknown.
        running_at_cut: (S,) bool, the option was still running when the fragment was cut.
    """

    start: Array
    end: Array
    episode_id: Array
    option_id: Array
    running_at_cut: Array


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

    start: Array
    end: Array
    trial_id: Array
    group_id: Array
    task_id: Array
    game_id: Array
    seed: Array
    outcome: Array
    success: Array
    n_turns: Array


def map_table(table: T, change: Array) -> T:
    """The table with `change(column)` in place of every column that is present, extras included."""
    new = {}
    for name, column in vars(table).items():
        if isinstance(column, dict):
            new[name] = {key: change(x) for key, x in column.items()}
        elif column is not None:
            new[name] = change(column)
    return replace(table, **new)


def dense_ids(key: Array) -> np.ndarray:
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
