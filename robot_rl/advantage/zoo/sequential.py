"""Turns updated one after the other, from the last to the first (SeeUPO; reconstructed, off by default)."""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    require_flat,
    require_rows,
)
from robot_rl.advantage.returns import discounted_return


@in_torch
def experimental_seeupo_weight(
    advantage: Array, log_ratios: Array, episode: Array, *, bounds: tuple[float, float] = (0.1, 10.0)
) -> Array:
    """Advantage of a turn times the ratios of all later turns after their own update.

    Args:
        advantage: (U,) advantage of the episode on each of its turns (score minus group mean, no deviation).
        log_ratios: (U,) sequence-level log-ratio of each turn, recomputed after that turn's update; only those of
            turns later than the one to be updated are read, the others may be 0.
        episode: (U,) episode ids, not falling.
        bounds: clamp of the product.

    Returns:
        (U,) weights M_u for the clipped loss of turn u, without gradient.

    Raises:
        ValueError: wrong shapes or ids.

    Source: SeeUPO (notes; the ratio product and its clamp are reconstructions).
    """
    advantage = advantage.detach()
    steps = log_ratios.detach().double()
    require_rows(require_flat("advantage", advantage), log_ratios=steps)
    later = discounted_return(steps, episode, 1.0) - steps
    return match_dtype(advantage.double() * torch.clip(torch.exp(torch.clip(later, -60.0, 60.0)), *bounds), advantage)


@in_torch
def turn_batches(turn_index: Array) -> list[tuple[int, Array]]:
    """Rows grouped by turn index, the last turn first: one optimiser pass each.

    Args:
        turn_index: (N,) turn index of each row; -1 = in no turn.

    Returns:
        (turn index, (M,) int64 rows).
    """
    last = int(turn_index.max()) if int(turn_index.shape[0]) else -1
    batches = [(index, torch.nonzero(turn_index == index)[:, 0]) for index in range(last, -1, -1)]
    return [(index, rows) for index, rows in batches if len(rows)]
