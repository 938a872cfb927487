"""Losses and diagnostics of value functions."""

from __future__ import annotations

from robot_rl.advantage.kinds import Array, as_array, boolean, cast, detach, double, floating, library
from robot_rl.advantage.layout import row_mask
from robot_rl.advantage.segments import seg_count, seg_sum


def value_loss_rows(
    value: Array, target: Array, *, old_value: Array = None, clip: float | None = 0.2, weight: Array = None
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
    value = floating(as_array(value))
    xp = library(value)
    target = detach(as_array(target, value))
    if weight is not None:
        weight = as_array(weight, value)
        on = weight != 0
        value, target = xp.where(on, value, 0.0), xp.where(on, target, 0.0)
    rows = (value - target) ** 2
    if clip is not None:
        if old_value is None:
            raise ValueError("old_value is missing: value clipping needs the value at collection; or set clip=None")
        old = detach(as_array(old_value, value))
        if weight is not None:
            old = xp.where(weight != 0, old, 0.0)
        rows = xp.maximum(rows, (old + xp.clip(value - old, -clip, clip) - target) ** 2)
    return 0.5 * rows if weight is None else 0.5 * rows * cast(weight, value)


def explained_variance(value: Array, target: Array, *, mask: Array = None) -> Array:
    """1 - var(target - value) / var(target) over the masked rows; 0 if the target has no spread.

    Args:
        value: (...) predicted values.
        target: (...) returns.
        mask: (...) rows to use, default all.

    Returns:
        0-d float64 without gradient.
    """
    value, target = double(detach(as_array(value))).reshape(-1), double(detach(as_array(target))).reshape(-1)
    xp = library(value)
    use = row_mask(None if mask is None else boolean(as_array(mask, value)).reshape(-1), value)
    ids = xp.zeros_like(use, dtype=xp.int64)
    count = seg_count(ids, 1, mask=use)
    safe = xp.where(count > 0, count, 1.0)

    def variance(x: Array) -> Array:
        mean = seg_sum(x, ids, 1, mask=use) / safe
        return seg_sum((x - mean) ** 2, ids, 1, mask=use) / safe

    total = variance(target)
    return xp.where(total > 0, 1.0 - variance(target - value) / xp.where(total > 0, total, 1.0), 0.0)[0]
