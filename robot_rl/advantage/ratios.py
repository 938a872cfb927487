"""Probability ratios per step, turn or sequence: the currency of every clipped policy loss."""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    floating,
    match_dtype,
    require_option,
)
from robot_rl.advantage.layout import UNITS, row_mask, unit_ids
from robot_rl.advantage.segments import seg_count, seg_max, seg_sum, spread

LOG_CLAMP = 20.0
"""Log-ratios are clamped to this magnitude before the exponential."""


@in_torch
def log_ratio(logp: Array, old_logp: Array, *, mask: Array | None = None, clamp: float = LOG_CLAMP) -> Array:
    """logp - old_logp, clamped; exactly 0 with zero gradient where masked, even if the inputs are NaN there.

    Args:
        logp: (...) log-probability under the policy that is trained.
        old_logp: (...) under the policy of the denominator.
        mask: (...) rows of the loss, default all.
        clamp: largest magnitude.

    Returns:
        (...) log-ratio.

    Raises:
        ValueError: shapes differ.
    """
    logp = floating(logp)
    old = old_logp
    if tuple(old.shape) != tuple(logp.shape):
        raise ValueError(f"old_logp has shape {tuple(old.shape)}, expected that of logp, {tuple(logp.shape)}")
    gap = logp - old
    if mask is not None:
        # Here and not behind the exponential: the slope of a difference is a constant, so that the zero gradient of a
        # masked row stays zero; times the slope of what made a NaN it would become NaN.
        gap = torch.where(mask.bool(), gap, 0.0)
    return torch.clip(gap, -clamp, clamp)


@in_torch
def unit_log_ratio(
    log_ratios: Array,
    unit: str = "step",
    *,
    turn: Array | None = None,
    episode: Array | None = None,
    mask: Array | None = None,
    clamp: float = LOG_CLAMP,
) -> Array:
    """Log-ratio of the unit that a row belongs to.

    Args:
        log_ratios: (N,) or (B, T) per-step log-ratios.
        unit: "step"; "turn" and "sequence" sum over the unit's masked rows (a chunk sampled jointly is a turn);
            "turn_geo" and "sequence_geo" take their mean.
        turn: per-row turn ids, -1 = none (log-ratio 0).
        episode: per-row episode ids; default: each line of (B, T).
        mask: rows of the loss, default all.
        clamp: largest magnitude of the result.

    Returns:
        Array like `log_ratios`; rows of a unit share one value. Differentiable.

    Raises:
        ValueError: unknown unit, missing ids or wrong shapes.

    Source: Zheng et al., Group Sequence Policy Optimization, for sequence_geo.
    """
    require_option("ratio_unit", unit, UNITS)
    if unit == "step":
        return log_ratios
    ids, count = unit_ids(unit, turn, episode, log_ratios)
    use = row_mask(mask, log_ratios) & (ids >= 0)
    safe = torch.where(ids >= 0, ids, 0)
    total = seg_sum(log_ratios.reshape(-1), safe, count, mask=use)
    if unit.endswith("_geo"):
        rows = seg_count(safe, count, mask=use)
        total = total / torch.where(rows > 0, rows, 1.0)
    value = torch.clip(total, -clamp, clamp)
    return match_dtype(spread(value, ids).reshape(log_ratios.shape), log_ratios)


@in_torch
def unit_advantage(
    advantage: Array,
    unit: str = "step",
    *,
    turn: Array | None = None,
    episode: Array | None = None,
    mask: Array | None = None,
) -> tuple[Array, Array]:
    """One advantage per unit: the mask-weighted mean where the rows of a unit disagree.

    Args:
        advantage: (N,) or (B, T).
        unit: see `unit_log_ratio`.
        turn: per-row turn ids.
        episode: per-row episode ids.
        mask: rows of the loss.

    Returns:
        (array like `advantage`, 0-d number of units whose rows disagreed: the warning counter to log).

    Raises:
        ValueError: as `unit_log_ratio`.
    """
    require_option("ratio_unit", unit, UNITS)
    if unit == "step":
        return advantage, (advantage != advantage).reshape(-1)[:0].long().sum()
    ids, count = unit_ids(unit, turn, episode, advantage)
    use = row_mask(mask, advantage) & (ids >= 0)
    safe = torch.where(ids >= 0, ids, 0)
    x = torch.where(use, advantage.reshape(-1).detach().double(), 0.0)
    rows = seg_count(safe, count, mask=use)
    mean = seg_sum(x, safe, count, mask=use) / torch.where(rows > 0, rows, 1.0)
    off = seg_max(torch.abs(x - mean[safe]), safe, count, mask=use)
    unequal = (off > 1e-6) & (rows > 0)
    return match_dtype(spread(mean, ids).reshape(advantage.shape), advantage), unequal.long().sum()
