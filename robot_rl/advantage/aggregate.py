"""From one loss per row to one number, with denominators of the whole optimiser batch.

Every mode is linear in the row losses, so it is one weight per row. The weights are computed once from the batch that
makes an optimiser step (`row_weight`); a micro-batch or worker sums weight · loss over its rows, and the parts add up
to the value, and the gradient, of the undivided batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from robot_rl.advantage.arrays import Columns, in_torch
from robot_rl.advantage.kinds import Array, floating, match_dtype, require_option
from robot_rl.advantage.layout import NO_IDS, RowIds, episode_cells, flat, row_mask, turn_ids
from robot_rl.advantage.normalise import as_cells
from robot_rl.advantage.segments import seg_count, seg_first, spread

MODES = (
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "const",
    "traj_turn_token",
    "turn_mean",
    "group_balanced",
)


@dataclass(frozen=True)
class BatchTotals(Columns):
    """Counts that workers add up before they weigh their rows.

    Attributes:
        row: masked rows.
        episode: episodes with at least one masked row. An episode must lie on one worker.
        turn: turns with at least one masked row.
        group_row: masked rows per group id (only if `n_groups` was given); groups may span workers.
    """

    row: Array
    episode: Array
    turn: Array
    group_row: Array

    @in_torch
    def __add__(self, other: BatchTotals) -> BatchTotals:
        """Totals of two workers."""
        return BatchTotals(
            self.row + other.row, self.episode + other.episode, self.turn + other.turn, self.group_row + other.group_row
        )


def _counts(ids: Array, n: int, use: Array) -> tuple[Array, Array]:
    """(masked rows per cell, 0-d number of cells with any)."""
    rows = seg_count(ids, n, mask=use)
    return rows, (rows > 0).double().sum()


@in_torch
def batch_totals(
    mask: Array,
    ids: RowIds = NO_IDS,
    *,
    n_groups: int | None = None,
) -> BatchTotals:
    """Counts of one worker's rows; add them over the workers and pass the sum to `row_weight`.

    Args:
        mask: (N,) or (B, T) rows of the loss, the ORIGINAL mask if later filters are to keep its denominator.
        ids: of the rows; if turns are given, an episode counts only if one of its turns has a masked row. Group ids
            are dense and mean the same on every worker.
        n_groups: number of groups.

    Raises:
        ValueError: wrong shapes.
    """
    use = row_mask(mask, mask)
    zero = use.double().sum() * 0.0
    episodes = turns = groups = zero
    counted = use
    if ids.turn is not None:
        cell, n = turn_ids(ids.turn, ids.episode, mask)
        counted = use & (cell >= 0)
        turns = _counts(torch.where(cell >= 0, cell, 0), n, counted)[1]
    if ids.episode is not None or len(mask.shape) == 2:
        cell, n = episode_cells(ids.episode, mask)
        episodes = _counts(cell, n, counted)[1]
    if ids.group is not None and n_groups is not None:
        groups = seg_count(flat(ids.group, mask, "group"), n_groups, mask=use)
    return BatchTotals(use.double().sum(), episodes, turns, groups)


@in_torch
def row_weight(
    mask: Array,
    mode: str = "token_mean",
    ids: RowIds = NO_IDS,
    *,
    n_groups: int | None = None,
    max_length: int | None = None,
    n_episodes: int | None = None,
    denominator_mask: Array | None = None,
    totals: BatchTotals | None = None,
) -> Array:
    """Weight of every row, so that sum(weight · loss) is the aggregate.

    Args:
        mask: (N,) or (B, T) rows of the loss; the others get weight 0.
        mode: "token_mean" (all rows alike), "seq_mean_token_mean" (mean over non-empty episodes of the row mean),
            "seq_mean_token_sum" (mean over episodes of the row sum), "const" (row sum / (episodes · max_length)),
            "traj_turn_token" (mean over episodes of the mean over turns of the row mean), "turn_mean" (mean over
            turns of the row mean), "group_balanced" (mean over groups of the row mean).
        ids: episodes, turns (a row in none has weight 0 in the turn modes) and, for "group_balanced", groups.
        n_groups: number of groups if their ids are dense and shared by workers, else None.
        max_length: C of "const": the configured maximum, never a padded width.
        n_episodes: number of episodes for "const" and "seq_mean_token_sum"; default: those with a masked row.
        denominator_mask: mask that the denominators count, default `mask`. Filters that reweigh rows (importance
            masks) keep the original one; void filters, which remove episodes, pass nothing.
        totals: totals of all workers; default: this batch is the whole one.

    Returns:
        Array like `mask`, float64, without gradient.

    Raises:
        ValueError: unknown mode, missing ids, or max_length missing for "const".

    Source: DAPO (token_mean), GRPO (seq_mean_token_mean), Dr. GRPO (const), WebAgent-R1 (traj_turn_token).
    """
    require_option("mode", mode, MODES)
    use = row_mask(mask, mask)
    base = use if denominator_mask is None else row_mask(denominator_mask, mask)
    zero = use.double() * 0.0
    if totals is None:
        counted = RowIds(ids.turn if "turn" in mode else None, ids.episode)
        totals = batch_totals(base.reshape(mask.shape), counted)
    if mode == "token_mean":
        weight = zero + 1.0 / _at_least_one(totals.row)
    elif mode in ("seq_mean_token_mean", "seq_mean_token_sum", "const"):
        cell, n = episode_cells(ids.episode, mask)
        episodes = _at_least_one(totals.episode if n_episodes is None else zero.sum() + n_episodes)
        if mode == "seq_mean_token_mean":
            weight = _inverse(_counts(cell, n, base)[0])[cell] / _at_least_one(totals.episode)
        elif mode == "seq_mean_token_sum":
            weight = zero + 1.0 / episodes
        else:
            if max_length is None or max_length < 1:
                raise ValueError(f"max_length is {max_length}, expected the configured maximum length for mode 'const'")
            weight = zero + 1.0 / (episodes * max_length)
    elif mode == "group_balanced":
        if ids.group is None:
            raise ValueError("group is missing: mode 'group_balanced' needs the group id of each row or line")
        cells = as_cells(flat(ids.group, mask, "group"), zero, n_groups)
        rows = seg_count(cells.ids, cells.n, mask=base & cells.inside)
        if n_groups is not None and tuple(totals.group_row.shape) == (n_groups,):
            rows = totals.group_row
        weight = torch.where(cells.inside, (_inverse(rows) / _at_least_one((rows > 0).double().sum()))[cells.ids], 0.0)
    else:
        cell, n = turn_ids(ids.turn, ids.episode, mask)
        inside = cell >= 0
        safe = torch.where(inside, cell, 0)
        rows, _ = _counts(safe, n, base & inside)
        weight = spread(_inverse(rows), cell)
        if mode == "turn_mean":
            weight = weight / _at_least_one(totals.turn)
        else:
            owner, m = episode_cells(ids.episode, mask)
            of_turn = seg_first(owner, safe, n, mask=base & inside)
            present = ~torch.isnan(of_turn)
            where_turn = torch.where(present, of_turn, 0.0)
            turns = seg_count(where_turn.long(), m, mask=present)
            # An episode counts only if a turn of it has a row: rows outside turns do not make an episode.
            weight = weight * _inverse(turns)[owner] / _at_least_one(totals.episode)
    return torch.where(use, weight, 0.0).reshape(mask.shape)


def _inverse(count: Array) -> Array:
    return torch.where(count > 0, 1.0 / torch.where(count > 0, count, 1.0), 0.0)


def _at_least_one(count: Array) -> Array:
    return torch.where(count > 0, count, torch.ones_like(count))


@in_torch
def weighted_sum(loss: Array, weight: Array) -> Array:
    """Sum of weight · loss over the rows with a weight; NaN elsewhere does not matter.

    Args:
        loss: (...) row losses.
        weight: (...) from `row_weight`.

    Returns:
        0-d, in the dtype of `loss`.

    Raises:
        ValueError: shapes differ.
    """
    loss = floating(loss)
    if tuple(loss.shape) != tuple(weight.shape):
        raise ValueError(f"loss has shape {tuple(loss.shape)}, expected that of weight, {tuple(weight.shape)}")
    total = (torch.where(weight != 0, loss, 0.0).double() * weight.double()).sum()
    return match_dtype(total, loss)


@in_torch
def mean_rows(loss: Array, use: Array | None = None) -> Array:
    """ "token_mean" of one whole batch without a weight per row: what an update costs at small batches.

    Args:
        loss: (...) row losses, exactly 0 outside `use`.
        use: bool rows of the loss, or None for all.

    Returns:
        0-d in the dtype of `loss` (both libraries add pairwise, which float32 bears); 0 where no row is used.
    """
    if use is None:
        return loss.mean() if 0 not in loss.shape else loss.sum()
    return loss.sum() / torch.clip(torch.sum(use, dtype=loss.dtype), 1.0, None)


@in_torch
def aggregate(
    loss: Array, mask: Array | None = None, mode: str = "token_mean", ids: RowIds = NO_IDS, **options: Any
) -> Array:
    """One number from the row losses of a whole optimiser batch; for parts of a batch use `row_weight`.

    Args:
        loss: (N,) or (B, T) row losses.
        mask: rows of the loss, default all.
        mode: see `row_weight`.
        ids: see `row_weight`.
        **options: of `row_weight`.

    Returns:
        0-d loss.

    Raises:
        ValueError: as `row_weight`.
    """
    loss = floating(loss)
    use = row_mask(mask, loss).reshape(loss.shape)
    return weighted_sum(loss, row_weight(use, mode, ids, **options))
