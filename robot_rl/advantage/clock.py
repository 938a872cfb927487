"""The clock of the decision process: observation rows leave it before any recursion and come back afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.batch import TurnBatch
from robot_rl.advantage.derive import rows_where
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
    kept: Tensor
    original: TurnBatch

    @in_torch
    def expand(self, x: Array, fill: Array | None = None) -> Array:
        """Per-row results on the rows of the original batch.

        Args:
            x: (rows of `batch`,) result.
            fill: (N,) what removed rows receive; None = 0. NaN in it becomes 0.
        """
        count = len(self.original)
        out = x.new_zeros(count) if fill is None else fill.nan_to_num().to(x.dtype)
        return out.index_copy(0, self.kept, x)


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
    if not isinstance(batch.steps.reward, Tensor):
        small = compact(batch.to("cpu"), clock_gap)
        whole = small.batch is small.original
        return replace(small, batch=batch if whole else small.batch.numpy(), original=batch)
    full, clock = batch.steps, batch.steps.clock
    kept = rows_where(clock)
    if len(kept) == len(clock):
        return Compact(batch, kept, batch)
    removed = rows_where(~clock)
    before = clock.cumsum(0)
    start = batch.episodes.start.long()
    first = before[start] - clock[start].long()
    target = torch.maximum(before[removed] - 1, first[full.episode_id[removed].long()])
    steps = map_table(full, lambda x: x[kept])
    reward = steps.reward.double().index_add(0, target, full.reward[removed].double())
    terminated, truncated = steps.terminated.clone(), steps.truncated.clone()
    terminated[target[full.terminated[removed]]] = True
    truncated[target[full.truncated[removed]]] = True
    truncated &= ~terminated
    k = steps.k
    discount = steps.discount
    if clock_gap == "add":
        k = k.index_add(0, target, full.k[removed])
        if discount is not None and full.discount is not None:
            discount = discount.scatter_reduce(0, target, full.discount[removed], "prod")
    steps = replace(
        steps,
        reward=reward.to(steps.reward.dtype),
        k=k,
        discount=discount,
        terminated=terminated,
        truncated=truncated,
    )
    position = (before - 1).int()
    turns = replace(batch.turns, start=position[batch.turns.start.long()], end=position[batch.turns.end.long()])
    segments = batch.segments
    if segments is not None:
        segments = replace(segments, start=position[segments.start.long()], end=position[segments.end.long()])
    last = before[batch.episodes.end.long()] - 1
    episodes = replace(batch.episodes, start=first.int(), end=last.int())
    return Compact(TurnBatch(steps, turns, episodes, segments, batch.report), kept, batch)


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
    if not isinstance(batch.steps.reward, Tensor):
        return perspective(batch.to("cpu"), actor).numpy()
    mine = batch.turns.actor_id == actor
    steps, given = batch.steps, batch.turns.turn_reward
    if given is not None:  # turns that go leave what they earned on their last row
        reward = steps.reward.clone()
        reward[batch.turns.end[~mine].long()] += given[~mine]
        steps = replace(steps, reward=reward)
    turn = steps.turn_id.long()
    clock = steps.clock & (turn >= 0) & mine[turn]
    rank = torch.where(mine, mine.cumsum(0) - 1, -1).int()
    turn_id = torch.where(clock, rank[turn], -1)
    turns = map_table(batch.turns, lambda x: x[mine])
    count = torch.bincount(turns.episode_id.long(), minlength=len(batch.episodes.start))
    idle = rows_where(count == 0)
    if len(idle):
        raise ValueError(f"actor {actor} has no turn in episode {int(idle[0])}; leave that episode out")
    last = turns.end[count.cumsum(0) - 1].long()
    boundary = torch.zeros_like(clock)
    boundary[last] = True
    value = steps.next_value
    if value is not None:
        value = value.clone()
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
    episodes = replace(batch.episodes, n_turns=count.int())
    return TurnBatch(steps, turns, episodes, None, batch.report)
