"""The clock of the decision process: observation rows leave it before any recursion and come back afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from robot_rl.advantage.arrays import in_torch, to_torch
from robot_rl.advantage.batch import TurnBatch
from robot_rl.advantage.kinds import Array
from robot_rl.advantage.rows import shift
from robot_rl.advantage.tables import map_table

GAPS = ("ignore", "add")


@dataclass(frozen=True)
class Compact:
    """A batch whose every row is a decision, and the way back.

    Attributes:
        batch: the clock rows only, tables re-indexed.
        kept: (rows,) int64 row of the original batch that each row came from.
        original: the batch before.
    """

    batch: TurnBatch
    kept: np.ndarray
    original: TurnBatch

    def expand(self, x: Array, fill: Array | None = None) -> Array:
        """Per-row results on the rows of the original batch.

        Args:
            x: (rows of `batch`,) result.
            fill: (N,) what removed rows receive; None = 0. NaN in it becomes 0.
        """
        count = len(self.original)
        if isinstance(x, torch.Tensor):
            out = torch.zeros(count, dtype=x.dtype, device=x.device) if fill is None else fill.nan_to_num().to(x.dtype)
            return out.index_copy(0, to_torch(self.kept, x.device), x)
        out = np.zeros(count, x.dtype) if fill is None else np.nan_to_num(fill).astype(x.dtype)
        out[self.kept] = x
        return out


def compact(batch: TurnBatch, clock_gap: str = "ignore") -> Compact:
    """Remove the rows that are no decision.

    Their reward goes, undiscounted, to the nearest earlier clock row of the same episode, or to the first one if there
    is none earlier; so do their ends and the value of the successor.

    Args:
        batch: validated batch.
        clock_gap: "ignore" drops the durations of removed rows (language); "add" adds them to the same row (robots
            whose sensor-only ticks are real time).

    Returns:
        The compacted batch and the way back. Without such rows it is the batch itself.

    Raises:
        ValueError: unknown `clock_gap`.
    """
    if clock_gap not in GAPS:
        raise ValueError(f"clock_gap is '{clock_gap}', expected one of {', '.join(GAPS)}")
    host = batch.numpy()
    clock = host.steps.clock
    kept = np.flatnonzero(clock)
    if len(kept) == len(clock):
        return Compact(batch, kept, batch)
    removed = np.flatnonzero(~clock)
    before = np.cumsum(clock)
    first = before[host.episodes.start] - clock[host.episodes.start]
    target = np.maximum(before[removed] - 1, first[host.steps.episode_id[removed]])
    steps = map_table(host.steps, lambda x: x[kept])
    reward = steps.reward.astype(np.float64)
    reward += np.bincount(target, host.steps.reward[removed], len(kept))
    terminated, truncated = steps.terminated.copy(), steps.truncated.copy()
    terminated[target[host.steps.terminated[removed]]] = True
    truncated[target[host.steps.truncated[removed]]] = True
    truncated &= ~terminated
    k = steps.k
    discount = steps.discount
    if clock_gap == "add":
        k = k + np.bincount(target, host.steps.k[removed], len(kept)).astype(k.dtype)
        if discount is not None and host.steps.discount is not None:
            discount = discount.copy()
            np.multiply.at(discount, target, host.steps.discount[removed])
    steps = replace(
        steps,
        reward=reward.astype(steps.reward.dtype),
        k=k,
        discount=discount,
        terminated=terminated,
        truncated=truncated,
    )
    position = (before - 1).astype(np.int32)
    turns = replace(host.turns, start=position[host.turns.start], end=position[host.turns.end])
    segments = host.segments
    if segments is not None:
        segments = replace(segments, start=position[segments.start], end=position[segments.end])
    last = before[host.episodes.end] - 1
    episodes = replace(host.episodes, start=first.astype(np.int32), end=last.astype(np.int32))
    small = TurnBatch(steps, turns, episodes, segments, batch.report)
    if isinstance(batch.steps.reward, torch.Tensor):
        small = small.to(batch.steps.reward.device)
    return Compact(small, kept, batch)


def foreign_cut(batch: TurnBatch) -> Array:
    """Rows whose trace must not pass on because the next decision of the episode is someone else's.

    Args:
        batch: compacted batch.

    Returns:
        (rows,) bool, the `cut` of `rollout_gae`.
    """
    return _foreign_cut(batch.steps.own, batch.steps.boundary)


@in_torch
def _foreign_cut(own: Array, boundary: Array) -> Array:
    return shift(~own.bool()) & ~boundary.bool()


def perspective(batch: TurnBatch, actor: int) -> TurnBatch:
    """The batch as one actor sees it: the turns of all others are observations.

    Their rewards are rewards to this actor and move to its preceding decision on compaction. Episodes in which the
    actor never decides cannot be compacted; leave them out before.

    Args:
        batch: validated batch, `reward` being the reward of this actor.
        actor: actor_id whose decisions stay on the clock.

    Returns:
        A batch with `clock` and `loss_mask` False on the rows of other actors, and only this actor's turns.

    Raises:
        ValueError: the actor has no turn in some episode.
    """
    host = batch.numpy()
    mine = host.turns.actor_id == actor
    steps, given = host.steps, host.turns.turn_reward
    if given is not None:  # turns that go leave what they earned on their last row
        reward = steps.reward.copy()
        reward[host.turns.end[~mine]] += given[~mine]
        steps = replace(steps, reward=reward)
    clock = steps.clock & np.where(steps.turn_id >= 0, mine[steps.turn_id], False)
    rank = np.where(mine, np.cumsum(mine) - 1, -1).astype(np.int32)
    turn_id = np.where(clock, rank[steps.turn_id], -1).astype(np.int32)
    turns = map_table(host.turns, lambda x: x[mine])
    count = np.bincount(turns.episode_id, minlength=len(host.episodes.start))
    if (count == 0).any():
        raise ValueError(f"actor {actor} has no turn in episode {int(np.argmin(count))}; leave that episode out")
    last = turns.end[np.append(np.flatnonzero(np.diff(turns.episode_id)), len(turns.end) - 1)]
    boundary = np.zeros_like(clock)
    boundary[last] = True
    value = steps.next_value
    if value is not None:
        value = value.copy()
        value[last] = value[steps.boundary]
    steps = replace(
        steps,
        clock=clock,
        loss_mask=steps.loss_mask & clock,
        turn_id=turn_id,
        segment_id=None,
        boundary=boundary,
        next_value=value,
    )
    episodes = replace(host.episodes, n_turns=count.astype(np.int32))
    seen = TurnBatch(steps, turns, episodes, None, batch.report)
    return seen.to(batch.steps.reward.device) if isinstance(batch.steps.reward, torch.Tensor) else seen
