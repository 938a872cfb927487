"""Weights and masks against the gap between the policy that acted and the policy that is trained.

Three log-probabilities of the same action: behaviour (what the sampling engine or the robot used), proximal (the
training engine at the start of the update) and current. All weights are free of gradient. Rows that a weight sets to 0
stay in the denominator of the loss.
"""

from __future__ import annotations

from robot_rl.advantage.kinds import (
    Array,
    as_array,
    boolean,
    detach,
    double,
    library,
    require_option,
)

W_MODES = ("none", "clamp", "mask")


def bounded_weight(weight: Array, mode: str = "none", *, cap: float = 2.0, floor: float = 0.0) -> Array:
    """An importance weight kept in bounds.

    Args:
        weight: (...) weights > 0.
        mode: "none"; "clamp" takes min(weight, cap); "mask" sets weights outside [floor, cap] to 0.
        cap: upper bound.
        floor: lower bound of "mask".

    Raises:
        ValueError: unknown mode or cap below floor.

    Source: truncated importance sampling; AReaL, behaviour importance weight cap; IcePop, two-sided mask.
    """
    require_option("mode", mode, W_MODES)
    if cap < floor:
        raise ValueError(f"cap is {cap} and floor is {floor}, expected cap >= floor")
    weight = as_array(weight)
    xp = library(weight)
    if mode == "clamp":
        return xp.clip(weight, None, cap)
    if mode == "mask":
        return xp.where((weight >= floor) & (weight <= cap), weight, 0.0)
    return weight


def effective_sample_size(weight: Array, mask: Array = None) -> Array:
    """(sum of w)^2 / sum of w^2 over the masked rows; 0 without weight.

    Args:
        weight: (...) importance weights.
        mask: (...) rows to use, default all.

    Returns:
        0-d float64.
    """
    weight = double(detach(as_array(weight)))
    xp = library(weight)
    if mask is not None:
        weight = xp.where(boolean(as_array(mask, weight)), weight, 0.0)
    square = (weight * weight).sum()
    return weight.sum() ** 2 / xp.where(square > 0, square, xp.ones_like(square))
