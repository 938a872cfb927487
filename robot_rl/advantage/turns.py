"""Turns: sums over the steps of a decision, credit per decision, and two-level credit inside it."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch

from robot_rl.advantage.arrays import check_shapes, check_unit, namespace, same_kind
from robot_rl.advantage.gae import rollout_gae
from robot_rl.advantage.kinds import Array
from robot_rl.advantage.rows import (
    RolloutRows,
    check_float,
    check_rows,
    flags,
    imprecise,
    power,
    shift,
    to_dtype,
    zero,
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
    xp = namespace(x)
    turn = xp.broadcast_to(turn, tuple(x.shape))
    count = turns if turns is not None else (int(turn.max()) + 1 if 0 not in turn.shape else 0)
    if turns is not None and xp is np and turn.size and int(turn.max()) >= turns:
        raise ValueError(f"turn id {int(turn.max())} found, expected ids below turns = {turns}")
    steps = x.shape[-1]
    flat, ids = x.reshape(-1, steps), turn.reshape(-1, steps)
    number = _arange(xp, flat.shape[0], flat)[:, None]
    # One extra cell per row collects the steps outside any turn.
    cell = (number * (count + 1) + xp.where(ids < 0, count, ids)).reshape(-1)
    cells = flat.shape[0] * (count + 1)
    out = _reduce(xp, flat.reshape(-1), cell, cells, reduce)
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
    xp = namespace(x, turn)
    turn = xp.broadcast_to(turn, (*x.shape[:-1], turn.shape[-1]))
    inside = turn >= 0
    if x.shape[-1] == 0:
        return xp.zeros_like(turn, dtype=x.dtype)
    index = xp.where(inside, turn, 0)
    index = index.long() if xp is torch else index
    picked = torch.gather(x, -1, index) if xp is torch else np.take_along_axis(x, index, -1)
    return xp.where(inside, picked, zero(x))


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
    weight = index.xp.zeros_like(columns["value"])
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
    xp, v = index.xp, columns["value"]
    total, _ = index.reward(rows.reward, 1.0, None, turn_reward)
    high, _ = rollout_gae(index.rows_of_turns(total, v[index.end], columns), gamma=gamma, gae_lambda=gae_lambda)
    wide = xp.float64 if imprecise(inner_gamma * inner_lambda) else v.dtype
    v = to_dtype(v, wide)
    delta = inner_gamma * shift(xp, v) - v
    if step_reward is not None:
        delta = delta + columns["step_reward"]
    ends = xp.zeros_like(v, dtype=xp.bool if xp is torch else np.bool_)
    ends[index.end] = True
    trace = xp.where(ends, zero(v), xp.full_like(v, inner_gamma * inner_lambda))
    advantage = solve(xp.where(ends, to_dtype(high, wide)[index.id], delta), trace)
    kind = rows.reward.dtype
    return TurnCredit(
        *(index.back(to_dtype(x, kind)) for x in (advantage, advantage + v, xp.ones_like(v))),
    )


@dataclass(frozen=True)
class _Index:
    """Turns of flat rows, and the way back to the caller's layout."""

    xp: ModuleType
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
        xp = self.xp
        r = to_dtype(self.rows(reward), xp.float64)
        ticks = None if duration is None else to_dtype(duration, xp.float64)
        if gamma != 1.0:
            if ticks is None:
                position = _arange(xp, len(r), r) - self.start[self.id]
            else:
                before = xp.cumsum(ticks, 0) - ticks
                position = to_dtype(before - before[self.start][self.id], xp.int64)
            r = r * power(gamma, position, xp.float64)
        total = _sum(xp, r, self.start, self.id)
        if turn_reward is not None:
            check_shapes(tuple(total.shape), turn_reward=turn_reward)
            total = total + turn_reward
        count = self.end - self.start + 1 if ticks is None else to_dtype(_sum(xp, ticks, self.start, self.id), xp.int64)
        return to_dtype(total, check_float(reward)), count

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
            whole = self.xp.zeros_like(x, shape=(int(np.prod(self.shape)),)) if self.xp is np else None
            if whole is None:
                whole = x.new_zeros(int(np.prod(self.shape))).index_copy(0, self.inside, x)
            else:
                whole[self.inside] = x
            x = whole
        return x if len(self.shape) == 1 else x.reshape(self.shape[1], self.shape[0]).swapaxes(0, 1)


def _flat(rows: RolloutRows, turn: Array, **more: Array | None) -> tuple[_Index, dict[str, Array]]:
    """Where the turns lie, and value, next_value, terminated, duration and `more` of the rows inside them, flat."""
    xp, shape = namespace(rows.reward), tuple(rows.reward.shape)
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"reward has shape {shape}, expected (rows,) or (T, N) with at least one row")
    check_rows(rows)
    check_shapes(shape, turn=turn, **more)
    columns = {"value": rows.value, "next_value": rows.next_value, "terminated": rows.terminated, **more}
    columns["duration"] = rows.duration
    ended = flags(rows.boundary) | flags(rows.terminated)
    if len(shape) == 2:
        ended = ended.copy() if xp is np else ended.clone()
        ended[-1] = True
    plain = _Index(xp, shape, None, None, None, None, None)
    ids, ended = plain.rows(turn), plain.rows(ended)
    fragment = xp.cumsum(ended, 0) - to_dtype(ended, xp.int64)
    inside = None
    if (ids < 0).any():
        inside = np.flatnonzero(ids >= 0) if xp is np else torch.nonzero(ids >= 0)[:, 0]
        if len(inside) == 0:
            raise ValueError("every row has turn -1, expected at least one row inside a turn")
        ids, fragment = ids[inside], fragment[inside]
    new = xp.ones_like(ids, dtype=ended.dtype)
    new[1:] = (ids[1:] != ids[:-1]) | (fragment[1:] != fragment[:-1])
    start = np.flatnonzero(new) if xp is np else torch.nonzero(new)[:, 0]
    stop = _arange(xp, 1, start) + (len(ids) - 1)
    end = xp.concatenate((start[1:] - 1, stop))
    # Behind the last turn of an episode comes another fragment, or nothing.
    last = xp.ones_like(start, dtype=ended.dtype)
    last[:-1] = fragment[start[1:]] != fragment[start[:-1]]
    index = _Index(xp, shape, inside, start, end, xp.cumsum(new, 0) - 1, last)
    return index, {name: None if x is None else index.rows(x) for name, x in columns.items()}


def _arange(xp: object, count: int, like: Array) -> Array:
    return np.arange(count) if xp is np else torch.arange(count, device=like.device)


def _sum(xp: object, x: Array, start: Array, ids: Array) -> Array:
    if xp is np:
        return np.add.reduceat(x, start)
    return x.new_zeros(len(start)).index_add(0, ids, x)


def _reduce(xp: object, x: Array, cell: Array, cells: int, reduce: str) -> Array:
    if xp is torch:
        return _reduce_torch(x, cell, cells, reduce)
    if reduce in ("sum", "mean"):
        total = np.bincount(cell, x, cells)
        if reduce == "mean":
            total = total / np.maximum(np.bincount(cell, minlength=cells), 1)
        return total.astype(x.dtype)
    if reduce == "max":
        out = np.full(cells, -np.inf, x.dtype)
        np.maximum.at(out, cell, x)
        return np.where(np.isneginf(out), x.dtype.type(0), out)
    out = np.zeros(cells, x.dtype)
    # The last of several assignments to one cell stands.
    order = slice(None, None, -1) if reduce == "first" else slice(None)
    out[cell[order]] = x[order]
    return out


def _reduce_torch(x: Array, cell: Array, cells: int, reduce: str) -> Array:
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
