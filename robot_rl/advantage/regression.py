"""Advantage-weighted regression: log-probabilities weighed by the exponential of the advantage."""

from __future__ import annotations

from typing import Any

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    floating,
    match_dtype,
)
from robot_rl.advantage.layout import row_mask


@in_torch
def awr_weight(
    advantage: Array, *, beta: float = 1.0, max_weight: float = 20.0, softmax: bool = False, mask: Array | None = None
) -> Array:
    """min(exp(A / beta), max_weight), or the softmax of A / beta over the batch times its size.

    Args:
        advantage: (...) advantages; used without gradient. For filtered imitation, score minus mean.
        beta: temperature, 0.05 to 1.
        max_weight: cap; not used with `softmax`.
        softmax: AWAC's normalisation over the masked rows; weights then have mean 1.
        mask: (...) rows of the loss, default all; the others get 0.

    Returns:
        (...) weights.

    Raises:
        ValueError: beta is not positive.

    Source: Peng et al., Advantage-Weighted Regression; Nair et al., AWAC (recalled).
    """
    if beta <= 0:
        raise ValueError(f"beta is {beta}, expected a positive temperature")
    advantage = advantage.detach()
    use = row_mask(mask, advantage).reshape(advantage.shape)
    scaled = torch.where(use, advantage.double(), 0.0) / beta
    if softmax:
        masked = torch.where(use, scaled, -float("inf"))
        top = masked.max()
        weight = torch.where(use, torch.exp(scaled - torch.where(torch.isfinite(top), top, torch.zeros_like(top))), 0.0)
        total = weight.sum()
        weight = weight / torch.where(total > 0, total, torch.ones_like(total)) * use.double().sum()
    else:
        # Clip before exp: a large advantage must not overflow on its way to the cap.
        weight = torch.clip(torch.exp(torch.clip(scaled, None, 700.0)), None, max_weight)
    return match_dtype(torch.where(use, weight, 0.0), advantage)


@in_torch
def awr_rows(logp: Array, advantage: Array, *, mask: Array | None = None, **options: Any) -> Array:
    """-`awr_weight` · logp.

    Args:
        logp: (...) current log-probability, with gradient.
        advantage: (...) advantages.
        mask: (...) rows of the loss, default all.
        **options: of `awr_weight`.

    Source: as `awr_weight`.
    """
    logp = floating(logp)
    use = row_mask(mask, logp).reshape(logp.shape)
    return -match_dtype(awr_weight(advantage, mask=use, **options), logp) * torch.where(use, logp, 0.0)
