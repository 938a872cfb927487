"""Losses and diagnostics of value functions."""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import Array, floating, match_dtype
from robot_rl.advantage.layout import row_mask
from robot_rl.advantage.segments import seg_count, seg_sum


@in_torch
def value_loss_rows(
    value: Array,
    target: Array,
    *,
    old_value: Array | None = None,
    clip: float | None = 0.2,
    weight: Array | None = None,
) -> Array:
    """0.5 · max((V - R)^2, (V_old + clip(V - V_old) - R)^2).

    Args:
        value: (...) current value, with gradient.
        target: (...) return.
        old_value: (...) value at collection, needed by the clip.
        clip: largest move from the old value that is rewarded; None for the plain squared error.
        weight: (...) factor per row, for instance 1 at anchor rows only; rows of weight 0 may hold NaN.

    Returns:
        (...) row losses.

    Raises:
        ValueError: clip without old_value.

    Source: Schulman et al., PPO implementation (value clipping).
    """
    value = floating(value)
    target = target.detach()
    if weight is not None:
        on = weight != 0
        value, target = torch.where(on, value, 0.0), torch.where(on, target, 0.0)
    rows = (value - target) ** 2
    if clip is not None:
        if old_value is None:
            raise ValueError("old_value is missing: value clipping needs the value at collection; or set clip=None")
        old = old_value.detach()
        if weight is not None:
            old = torch.where(weight != 0, old, 0.0)
        rows = torch.maximum(rows, (old + torch.clip(value - old, -clip, clip) - target) ** 2)
    return 0.5 * rows if weight is None else 0.5 * rows * match_dtype(weight, value)


@in_torch
def explained_variance(value: Array, target: Array, *, mask: Array | None = None) -> Array:
    """1 - var(target - value) / var(target) over the masked rows; 0 if the target has no spread.

    Args:
        value: (...) predicted values.
        target: (...) returns.
        mask: (...) rows to use, default all.

    Returns:
        0-d float64 without gradient.
    """
    value, target = value.detach().double().reshape(-1), target.detach().double().reshape(-1)
    use = row_mask(None if mask is None else mask.bool().reshape(-1), value)
    ids = torch.zeros_like(use, dtype=torch.int64)
    count = seg_count(ids, 1, mask=use)
    safe = torch.where(count > 0, count, 1.0)

    def variance(x: Array) -> Array:
        mean = seg_sum(x, ids, 1, mask=use) / safe
        return seg_sum((x - mean) ** 2, ids, 1, mask=use) / safe

    total = variance(target)
    return torch.where(total > 0, 1.0 - variance(target - value) / torch.where(total > 0, total, 1.0), 0.0)[0]
