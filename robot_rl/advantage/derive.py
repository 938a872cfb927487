"""Turn, segment and episode tables derived from the ids of the step table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch
from torch import Tensor

from robot_rl.advantage.arrays import tensor
from robot_rl.advantage.segments import add
from robot_rl.advantage.tables import EpisodeTable, SegmentTable, StepTable, TurnTable


def turn_table(steps: StepTable, columns: Mapping[str, object]) -> TurnTable:
    """Turn table of validated steps.

    Args:
        steps: tensors, validated.
        columns: (U,) columns by name: actor_id, role_id, anchor_key, void, turn_reward, wall_time, switch.

    Returns:
        The table; actor and role 0, no anchor and not void where nothing is given.

    Raises:
        ValueError: an unknown column, or one whose length is not the number of turns.
    """
    start, end, _ = spans(steps.turn_id, steps.clock)
    given = _Given(
        columns, TurnTable, start, "turn", taken=("start", "end", "episode_id", "turn_index", "own_turn_index")
    )
    episode = steps.episode_id[start.long()]
    actor = given.column("actor_id", 0, torch.int32)
    return TurnTable(
        start=start,
        end=end,
        episode_id=episode,
        turn_index=_position(episode),
        own_turn_index=_position(episode, actor),
        actor_id=actor,
        role_id=given.column("role_id", 0, torch.int32),
        anchor_key=given.column("anchor_key", 0, torch.int64),
        void=given.column("void", False, torch.bool),
        turn_reward=given.optional("turn_reward", steps.reward.dtype),
        wall_time=given.optional("wall_time", steps.reward.dtype),
        switch=given.optional("switch"),
    )


def segment_table(steps: StepTable, columns: Mapping[str, object]) -> SegmentTable | None:
    """Segment table, or None without segment ids.

    Args:
        steps: tensors, validated.
        columns: (S,) columns by name: option_id, running_at_cut.

    Returns:
        The table; options unknown and not running at the cut where nothing is given.

    Raises:
        ValueError: ids that are not dense and growing, a segment over two episodes, or an unknown column.
    """
    if steps.segment_id is None:
        return None
    start, end, ids = spans(steps.segment_id, steps.clock)
    strange = rows_where(ids != torch.arange(len(ids), device=ids.device))
    if len(strange):
        at = strange[0]
        raise ValueError(f"segment_id is {int(ids[at])} at row {int(start[at])}, expected ids from 0 that grow by one")
    episode = steps.episode_id[start.long()]
    crossing = rows_where(episode != steps.episode_id[end.long()])
    if len(crossing):
        at = crossing[0]
        raise ValueError(
            f"segment {int(at)} reaches into another episode at row {int(end[at])}, expected a new segment"
        )
    given = _Given(columns, SegmentTable, start, "segment", taken=("start", "end", "episode_id"))
    return SegmentTable(
        start=start,
        end=end,
        episode_id=episode,
        option_id=given.column("option_id", -1, torch.int32),
        running_at_cut=given.column("running_at_cut", False, torch.bool),
    )


def episode_table(
    steps: StepTable, turns: TurnTable, unscorable: Tensor, columns: Mapping[str, object]
) -> EpisodeTable:
    """Episode table.

    Args:
        steps: tensors, validated.
        turns: their turn table.
        unscorable: (E,) bool, episodes whose reward held a NaN; their outcome becomes NaN.
        columns: (E,) columns by name: trial_id, group_id, task_id, game_id, seed, outcome, success.

    Returns:
        The table; without given columns every fragment is a trial of its own, in no group, of task and game 0, and its
        outcome is the sum of its step and turn rewards.

    Raises:
        ValueError: an unknown column, or one whose length is not the number of episodes.
    """
    start, end, _ = spans(steps.episode_id, torch.ones_like(steps.clock))
    count, kind, of_turn = len(start), steps.reward.dtype, turns.episode_id.long()
    given = _Given(columns, EpisodeTable, start, "episode", taken=("start", "end", "n_turns"))
    total = add(steps.reward.double(), steps.episode_id.long(), count)
    if turns.turn_reward is not None:
        total = total + add(turns.turn_reward.double().nan_to_num(), of_turn, count)
        unscorable = unscorable | (add(torch.isnan(turns.turn_reward).double(), of_turn, count) > 0)
    outcome = given.optional("outcome")
    trial = given.optional("trial_id", torch.int32)
    return EpisodeTable(
        start=start,
        end=end,
        trial_id=torch.arange(count, dtype=torch.int32, device=start.device) if trial is None else trial,
        group_id=given.column("group_id", -1, torch.int32),
        task_id=given.column("task_id", 0, torch.int32),
        game_id=given.column("game_id", 0, torch.int32),
        seed=given.column("seed", 0, torch.int64),
        outcome=torch.where(unscorable, torch.nan, total if outcome is None else outcome).to(kind),
        success=given.column("success", torch.nan, kind),
        n_turns=torch.bincount(of_turn, minlength=count).int(),
    )


def spans(ids: Tensor, clock: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First and last row and the id of every run of equal ids over the clock rows.

    Returns:
        (start, end, id), all int32, in order of time.
    """
    rows = rows_where(clock)
    here = ids[rows]
    first = rows_where(_new_runs(here))
    return rows[first].int(), rows[ends_of(first, len(rows))].int(), here[first]


def rows_where(mask: Tensor) -> Tensor:
    """(M,) int64 rows on which a flat mask holds."""
    return mask.nonzero().squeeze(1)


def ends_of(start: Tensor, count: int) -> Tensor:
    """Last row, inclusive, of each stretch of `count` rows of which `start` holds the first."""
    return torch.diff(start, append=torch.full_like(start[:1], count)) + start - 1


def _new_runs(*columns: Tensor) -> Tensor:
    """(N,) bool, rows that differ from the row before in one of the columns, and the first."""
    new = torch.ones_like(columns[0], dtype=torch.bool)
    new[1:] = torch.stack([column[1:] != column[:-1] for column in columns]).any(0)
    return new


def _position(episode: Tensor, actor: Tensor | None = None) -> Tensor:
    """Position of each turn in its episode, counted per actor if actors are given."""
    if actor is None:
        return _position_in_run(_new_runs(episode))
    order = torch.argsort(actor, stable=True)
    order = order[torch.argsort(episode[order], stable=True)]
    out = torch.empty_like(actor)
    out[order] = _position_in_run(_new_runs(episode[order], actor[order]))
    return out


def _position_in_run(new: Tensor) -> Tensor:
    start = rows_where(new)
    return (torch.arange(len(new), device=new.device) - start[new.cumsum(0) - 1]).int()


class _Given:
    """Columns of a table that a caller gives by name, checked, as tensors beside its first rows `start`."""

    def __init__(
        self, columns: Mapping[str, object], table: type, start: Tensor, name: str, *, taken: tuple[str, ...]
    ) -> None:
        known = [item.name for item in fields(table) if item.name not in taken]
        self._start, self._columns = start, dict[str, Tensor]()
        for key, column in columns.items():
            if key not in known:
                raise ValueError(f"unknown {name} column '{key}'; expected one of {', '.join(known)}")
            if column is None:
                continue
            self._columns[key] = x = tensor(column, start.device)
            if x.shape != start.shape:
                raise ValueError(
                    f"{name} column '{key}' has shape {tuple(x.shape)}, expected ({len(start)},): one per {name}"
                )

    def column(self, name: str, default: float, dtype: torch.dtype) -> Tensor:
        """A column, filled with a number where it is not given."""
        x = self._columns.get(name)
        return torch.full_like(self._start, default, dtype=dtype) if x is None else x.to(dtype)

    def optional(self, name: str, dtype: torch.dtype | None = None) -> Tensor | None:
        """A column, or None where it is not given."""
        x = self._columns.get(name)
        return x if x is None or dtype is None else x.to(dtype)
