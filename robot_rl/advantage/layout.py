"""Ids of the rows of a loss: which episode, turn or group a row belongs to, for flat and for (B, T) arrays.

Losses accept flat rows (N,) with ids, and padded batches (B, T) in which each line is an episode unless ids say
otherwise. Everything is computed on flat rows; results get the shape of the input back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from robot_rl.advantage.arrays import Columns, in_torch
from robot_rl.advantage.kinds import Array, require_ids, require_option
from robot_rl.advantage.segments import combine_ids, factorise


@dataclass(frozen=True)
class RowIds(Columns):
    """Which turn, episode and group each row of a loss belongs to; a loss reads those that its options need.

    Attributes:
        turn: per-row turn ids, -1 = none.
        episode: per-row episode ids; None = each line of (B, T) is one.
        group: per-row or per-line group ids.
    """

    turn: Array | None = None
    episode: Array | None = None
    group: Array | None = None


NO_IDS = RowIds()
UNITS = ("step", "turn", "turn_geo", "sequence", "sequence_geo")


@in_torch
def flat(x: Array, like: Array, name: str) -> Array:
    """(N,) view of an array that has one entry per row of `like`, or one per line of a padded batch.

    Args:
        x: same shape as `like`, or (B,) for `like` (B, T).
        like: (N,) or (B, T) array of the loss.
        name: of the argument, for the error.

    Raises:
        ValueError: another shape.
    """
    shape, wanted = tuple(x.shape), tuple(like.shape)
    if shape == wanted:
        return x.reshape(-1)
    if len(wanted) == 2 and shape == wanted[:1]:
        return _lines(x, wanted[1])
    raise ValueError(f"{name} has shape {shape}, expected {wanted}" + (f" or {wanted[:1]}" if len(wanted) == 2 else ""))


def _lines(x: Array, width: int) -> Array:
    return torch.broadcast_to(x[:, None], (int(x.shape[0]), width)).reshape(-1)


@in_torch
def row_mask(mask: Array, like: Array) -> Array:
    """(N,) bool mask of the rows of `like`; None means all rows."""
    if mask is None:
        return torch.ones_like(like.reshape(-1), dtype=torch.bool)
    return flat(mask, like, "mask").bool()


@in_torch
def loss_mask(mask: Array | None, like: Array) -> Array | None:
    """Bool mask of the shape of `like`, or None where all rows count."""
    if mask is None:
        return None
    whole = mask
    if whole.shape == like.shape:
        return whole.bool()
    return row_mask(mask, like).reshape(like.shape)


@in_torch
def episode_ids(episode: Array, like: Array) -> Array:
    """(N,) episode of each row; None means that each line of a padded batch is one.

    Raises:
        ValueError: flat rows without ids, or ids of another shape or dtype.
    """
    if episode is not None:
        ids = flat(episode, like, "episode")
        require_ids("episode", ids)
        return ids.long()
    if len(like.shape) != 2:
        raise ValueError("episode is missing: flat rows need the episode id of each row")
    return _lines(torch.arange(int(like.shape[0]), device=like.device), int(like.shape[1]))


@in_torch
def episode_cells(episode: Array, like: Array) -> tuple[Array, int]:
    """((N,) dense episode of each row, number of episodes); lines of a padded batch need no search for equal ids."""
    ids = episode_ids(episode, like)
    return (ids, int(like.shape[0])) if episode is None else factorise(ids)


@in_torch
def turn_ids(turn: Array, episode: Array, like: Array) -> tuple[Array, int]:
    """((N,) dense turn of each row, -1 outside any turn, and the number of turns).

    Args:
        turn: per-row turn ids; they may restart in every episode if the episodes are known.
        episode: per-row episode ids, or None: lines of a padded batch, or turn ids that are unique in the batch.
        like: (N,) or (B, T) array of the loss.

    Raises:
        ValueError: turn is missing or has another shape or dtype.
    """
    if turn is None:
        raise ValueError("turn is missing: this unit or aggregation needs the turn id of each row (-1 = none)")
    ids = flat(turn, like, "turn")
    require_ids("turn", ids)
    if episode is None and len(like.shape) != 2:
        dense, count = factorise(ids)
    else:
        dense, count = combine_ids(episode_ids(episode, like), ids)
    return torch.where(ids >= 0, dense, -1), count


@in_torch
def unit_ids(unit: str, turn: Array, episode: Array, like: Array) -> tuple[Array, int]:
    """Rows that share one ratio: ((N,) dense ids, -1 = in no unit, and the number of units).

    Args:
        unit: one of UNITS except "step".
        turn: per-row turn ids.
        episode: per-row episode ids.
        like: array of the loss.

    Raises:
        ValueError: unknown unit or missing ids.
    """
    require_option("ratio_unit", unit, UNITS)
    if unit.startswith("turn"):
        return turn_ids(turn, episode, like)
    return episode_cells(episode, like)
