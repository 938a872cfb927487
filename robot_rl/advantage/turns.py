"""Turns: sums over the steps of a decision, credit per decision, and two-level credit inside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from robot_rl.advantage.arrays import check_shapes, check_unit, same_kind
from robot_rl.advantage.gae import rollout_gae
from robot_rl.advantage.kinds import Array, readable
from robot_rl.advantage.rows import (
    RolloutRows,
    check_float,
    check_rows,
    imprecise,
    power,
    shift,
)
from robot_rl.advantage.scan import solve

REDUCE = ("sum", "mean", "max", "first", "last")
ANCHORS = ("start", "end")
UNITS = ("per_turn", "per_tick")


class TurnCredit(NamedTuple):
    """Result of the turn-level estimators, in the layout of the rows that went in.

    Attributes:
        advantage: the turn's advantage in every row of the turn; 0 outside turns.
        target: value target of the turn in every row of the turn; 0 outside turns.
        weight: weight of the value loss: 1 in anchor rows (every turn row for the two-level form), else 0.
    """

    advantage: Array
    target: Array
    weight: Array


@same_kind
def to_turns(x: Array, turn: Array, reduce: str = "sum", *, turns: int | None = None) -> Array:
    """Reduce steps to turns along the last axis.

    Args:
        x: (..., T) float.
        turn: (..., T) int turn id of each step counted from 0 in each row, -1 = outside any turn; broadcasts to `x`.
        reduce: "sum", "mean", "max", "first" or "last".
        turns: K; None = largest id + 1 (which waits for the device on CUDA).

    Returns:
        (..., K); 0 for ids without a step.

    Raises:
        ValueError: unknown `reduce`, or an id of K or above.
    """
    if reduce not in REDUCE:
        raise ValueError(f"reduce is '{reduce}', expected one of {', '.join(REDUCE)}")
    turn = torch.broadcast_to(turn, tuple(x.shape))
    count = turns if turns is not None else (int(turn.max()) + 1 if 0 not in turn.shape else 0)
    if turns is not None and readable(turn) and turn.numel() and int(turn.max()) >= turns:
        raise ValueError(f"turn id {int(turn.max())} found, expected ids below turns = {turns}")
    steps = x.shape[-1]
    flat, ids = x.reshape(-1, steps), turn.reshape(-1, steps)
    number = torch.arange(flat.shape[0], device=x.device)[:, None]
    # One extra cell per row collects the steps outside any turn.
    cell = (number * (count + 1) + torch.where(ids < 0, count, ids)).reshape(-1)
    cells = flat.shape[0] * (count + 1)
    out = _reduce(flat.reshape(-1), cell, cells, reduce)
    return out.reshape(*x.shape[:-1], count + 1)[..., :count]


@same_kind
def to_steps(x: Array, turn: Array) -> Array:
    """Give every step the number of its turn, 0 outside any turn.

    Args:
        x: (..., K).
        turn: (..., T) int, -1 = outside any turn.

    Returns:
        (..., T).
    """
    turn = torch.broadcast_to(turn, (*x.shape[:-1], turn.shape[-1]))
    inside = turn >= 0
    if x.shape[-1] == 0:
        return torch.zeros_like(turn, dtype=x.dtype)
    return torch.where(inside, torch.gather(x, -1, torch.where(inside, turn, 0).long()), 0.0)


@same_kind
def turn_gae(
    rows: RolloutRows,
    turn: Array,
    *,
    gamma: float = 0.95,
    gae_lambda: float = 0.95,
    inner_gamma: float = 1.0,
    anchor: str = "start",
    unit: str = "per_turn",
    turn_reward: Array | None = None,
) -> TurnCredit:
    """GAE whose rows are turns; every step of a turn receives the turn's advantage.

    Args:
        rows: the rollout, with values; a turn's value is the one at its anchor row.
        turn: like the reward, int; a new turn begins where the id changes or an episode ended, negative = outside any
            turn (padding, observation rows). Turn ends are never inferred from rewards.
        gamma: discount per turn, or per tick with `unit` "per_tick".
        gae_lambda: trace decay per turn.
        inner_gamma: discount per tick inside the turn: 1 for tokens, gamma for control ticks.
        anchor: "start" (first row of the turn) or "end" (last row).
        unit: "per_turn" or "per_tick".
        turn_reward: (turns,) added to the summed rewards, in order of the flat storage.

    Returns:
        Advantage, target and value weight per row.

    Raises:
        ValueError: shapes, dtypes or options that do not fit.

    Source: VAGEN and VL-DAC, turn-wise advantage; RAGEN for the anchor at the end.
    """
    check_unit(inner_gamma=inner_gamma)
    if anchor not in ANCHORS or unit not in UNITS:
        raise ValueError(f"anchor '{anchor}' and unit '{unit}': expected one of {ANCHORS} and one of {UNITS}")
    index, columns = _flat(rows, turn)
    total, ticks = index.reward(rows.reward, inner_gamma, columns["duration"], turn_reward)
    place = index.start if anchor == "start" else index.end
    anchored = columns["value"][place]
    high = index.rows_of_turns(total, anchored, columns, ticks if unit == "per_tick" else None)
    advantage, target = rollout_gae(high, gamma=gamma, gae_lambda=gae_lambda)
    weight = torch.zeros_like(columns["value"])
    weight[place] = 1
    return TurnCredit(*(index.back(x) for x in (advantage[index.id], target[index.id], weight)))


@same_kind
def bilevel_gae(
    rows: RolloutRows,
    turn: Array,
    *,
    gamma: float = 0.95,
    gae_lambda: float = 0.95,
    inner_gamma: float = 1.0,
    inner_lambda: float | None = None,
    step_reward: Array | None = None,
    turn_reward: Array | None = None,
) -> TurnCredit:
    """Two-level credit: GAE over turns, then GAE inside each turn that ends in the turn's advantage.

    Stage 1 uses V at the last row of each turn. Stage 2, z the last row of turn u: A_z = A_u; before it
    delta_t = step_reward_t + inner_gamma V_{t+1} - V_t and A_t = delta_t + inner_gamma inner_lambda A_{t+1}.

    Args:
        rows, turn, gamma, gae_lambda, turn_reward: as in `turn_gae`.
        inner_gamma: discount per row inside a turn (stage 2); the turn's reward is the plain sum.
        inner_lambda: trace decay inside a turn; None = `gae_lambda`.
        step_reward: same shape as reward, per-row reward not counted in the turn's (a KL penalty, say); None = 0.

    Returns:
        Advantage, target (advantage + value) and value weight per row.

    Raises:
        ValueError: shapes, dtypes or options that do not fit.

    Source: RAGEN and VAGEN, bi-level GAE; turn ends are taken from the turn ids.
    """
    inner_lambda = gae_lambda if inner_lambda is None else inner_lambda
    check_unit(inner_gamma=inner_gamma, inner_lambda=inner_lambda)
    index, columns = _flat(rows, turn, step_reward=step_reward)
    v = columns["value"]
    total, _ = index.reward(rows.reward, 1.0, None, turn_reward)
    high, _ = rollout_gae(index.rows_of_turns(total, v[index.end], columns), gamma=gamma, gae_lambda=gae_lambda)
    wide = torch.float64 if imprecise(inner_gamma * inner_lambda) else v.dtype
    v = v.to(wide)
    delta = inner_gamma * shift(v) - v
    if step_reward is not None:
        delta = delta + columns["step_reward"]
    ends = torch.zeros_like(v, dtype=torch.bool)
    ends[index.end] = True
    trace = torch.where(ends, 0.0, torch.full_like(v, inner_gamma * inner_lambda))
    advantage = solve(torch.where(ends, high.to(wide)[index.id], delta), trace)
    kind = rows.reward.dtype
    return TurnCredit(
        *(index.back(x.to(kind)) for x in (advantage, advantage + v, torch.ones_like(v))),
    )


@dataclass(frozen=True)
class _Index:
    """Turns of flat rows, and the way back to the caller's layout."""

    shape: tuple[int, ...]
    inside: Array  # rows of the flat order that lie in a turn, or None for all
    start: Array
    end: Array
    id: Array  # dense turn of each row inside
    last: Array  # per turn: nothing of its episode follows

    def reward(
        self, reward: Array, gamma: float, duration: Array | None, turn_reward: Array | None
    ) -> tuple[Array, Array]:
        """Reward and ticks of each turn, summed in double."""
        r = self.rows(reward).to(torch.float64)
        ticks = None if duration is None else duration.to(torch.float64)
        if gamma != 1.0:
            if ticks is None:
                position = torch.arange(len(r), device=r.device) - self.start[self.id]
            else:
                before = torch.cumsum(ticks, 0) - ticks
                position = (before - before[self.start][self.id]).to(torch.int64)
            r = r * power(gamma, position, torch.float64)
        total = _sum(r, self.start, self.id)
        if turn_reward is not None:
            check_shapes(tuple(total.shape), turn_reward=turn_reward)
            total = total + turn_reward
        count = self.end - self.start + 1 if ticks is None else (_sum(ticks, self.start, self.id)).to(torch.int64)
        return total.to(check_float(reward)), count

    def rows_of_turns(
        self, reward: Array, value: Array, columns: dict[str, Array], duration: Array | None = None
    ) -> RolloutRows:
        """The rollout one level up: a row per turn, its successor the one behind its last row."""
        following, ended = columns["next_value"][self.end], columns["terminated"][self.end]
        return RolloutRows(reward, value, following, ended, self.last, duration)

    def rows(self, x: Array) -> Array:
        """A column in flat order, rows inside turns only."""
        if x.ndim == 2:
            x = x.swapaxes(0, 1).reshape(-1)
        return x if self.inside is None else x[self.inside]

    def back(self, x: Array) -> Array:
        """Flat rows inside turns in the caller's layout, 0 elsewhere."""
        if self.inside is not None:
            x = x.new_zeros(math.prod(self.shape)).index_copy(0, self.inside, x)
        return x if len(self.shape) == 1 else x.reshape(self.shape[1], self.shape[0]).swapaxes(0, 1)


def _flat(rows: RolloutRows, turn: Array, **more: Array | None) -> tuple[_Index, dict[str, Array]]:
    """Where the turns lie, and value, next_value, terminated, duration and `more` of the rows inside them, flat."""
    shape = tuple(rows.reward.shape)
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"reward has shape {shape}, expected (rows,) or (T, N) with at least one row")
    check_rows(rows)
    check_shapes(shape, turn=turn, **more)
    columns = {"value": rows.value, "next_value": rows.next_value, "terminated": rows.terminated, **more}
    columns["duration"] = rows.duration
    ended = torch.logical_or(rows.boundary, rows.terminated)
    if len(shape) == 2:
        ended[-1] = True
    plain = _Index(shape, None, None, None, None, None)
    ids, ended = plain.rows(turn), plain.rows(ended)
    fragment = torch.cumsum(ended, 0) - ended.long()
    inside, over = None, torch.zeros_like(ended)
    if (ids < 0).any():
        inside = torch.nonzero(ids >= 0)[:, 0]
        # An observation row may end the episode: the turn before it has no successor then.
        over[fragment[plain.rows(rows.terminated).bool() & (ids < 0)]] = True
        if len(inside) == 0:
            raise ValueError("every row has turn -1, expected at least one row inside a turn")
        ids, fragment = ids[inside], fragment[inside]
    new = torch.ones_like(ids, dtype=ended.dtype)
    new[1:] = (ids[1:] != ids[:-1]) | (fragment[1:] != fragment[:-1])
    start = torch.nonzero(new)[:, 0]
    end = torch.cat((start[1:] - 1, start.new_full((1,), len(ids) - 1)))
    # Behind the last turn of an episode comes another fragment, or nothing.
    last = torch.ones_like(start, dtype=ended.dtype)
    last[:-1] = fragment[start[1:]] != fragment[start[:-1]]
    ends = torch.zeros_like(ids, dtype=ended.dtype).index_put((end,), last & over[fragment[end]])
    index = _Index(shape, inside, start, end, torch.cumsum(new, 0) - 1, last)
    found = {name: None if x is None else index.rows(x) for name, x in columns.items()}
    return index, {**found, "terminated": torch.logical_or(index.rows(rows.terminated), ends)}


def _sum(x: Array, start: Array, ids: Array) -> Array:
    return x.new_zeros(len(start)).index_add(0, ids, x)


def _reduce(x: Array, cell: Array, cells: int, reduce: str) -> Array:
    if reduce in ("sum", "mean"):
        total = x.new_zeros(cells).index_add(0, cell, x)
        return total / torch.bincount(cell, minlength=cells).clamp(min=1) if reduce == "mean" else total
    if reduce == "max":
        return x.new_zeros(cells).scatter_reduce(0, cell, x, "amax", include_self=False)
    rows = torch.arange(len(x), device=x.device)
    none = len(x) if reduce == "first" else -1
    how = "amin" if reduce == "first" else "amax"
    place = torch.full((cells,), none, device=x.device).scatter_reduce(0, cell, rows, how)
    there = (place >= 0) & (place < len(x))
    return torch.where(there, x[place.clamp(0, max(len(x) - 1, 0))], 0)


__all__ = ["Array", "TurnCredit", "bilevel_gae", "to_steps", "to_turns", "turn_gae"]
