"""Weights and masks against the gap between the policy that acted and the policy that is trained.

Three log-probabilities of the same action: behaviour (what the sampling engine or the robot used), proximal (the
training engine at the start of the update) and current. All weights are free of gradient. Rows that a weight sets to 0
stay in the denominator of the loss.
"""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    require_option,
)

W_MODES = ("none", "clamp", "mask")


@in_torch
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
    if mode == "clamp":
        return torch.clip(weight, None, cap)
    if mode == "mask":
        return torch.where((weight >= floor) & (weight <= cap), weight, 0.0)
    return weight


@in_torch
def effective_sample_size(weight: Array, mask: Array | None = None) -> Array:
    """(sum of w)^2 / sum of w^2 over the masked rows; 0 without weight.

    Args:
        weight: (...) importance weights.
        mask: (...) rows to use, default all.

    Returns:
        0-d float64.
    """
    weight = weight.detach().double()
    if mask is not None:
        weight = torch.where(mask.bool(), weight, 0.0)
    square = (weight * weight).sum()
    return weight.sum() ** 2 / torch.where(square > 0, square, torch.ones_like(square))
