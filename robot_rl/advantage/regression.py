"""Advantage-weighted regression: log-probabilities weighed by the exponential of the advantage."""

from __future__ import annotations

from typing import Any

from robot_rl.advantage.kinds import (
    Array,
    as_array,
    cast,
    detach,
    double,
    floating,
    library,
)
from robot_rl.advantage.layout import row_mask


def awr_weight(
    advantage: Array, *, beta: float = 1.0, max_weight: float = 20.0, softmax: bool = False, mask: Array = None
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
    advantage = detach(as_array(advantage))
    xp = library(advantage)
    use = row_mask(mask, advantage).reshape(advantage.shape)
    scaled = xp.where(use, double(advantage), 0.0) / beta
    if softmax:
        masked = xp.where(use, scaled, -float("inf"))
        top = masked.max()
        weight = xp.where(use, xp.exp(scaled - xp.where(xp.isfinite(top), top, xp.zeros_like(top))), 0.0)
        total = weight.sum()
        weight = weight / xp.where(total > 0, total, xp.ones_like(total)) * double(use).sum()
    else:
        # Clip before exp: a large advantage must not overflow on its way to the cap.
        weight = xp.clip(xp.exp(xp.clip(scaled, None, 700.0)), None, max_weight)
    return cast(xp.where(use, weight, 0.0), advantage)


def awr_rows(logp: Array, advantage: Array, *, mask: Array = None, **options: Any) -> Array:
    """-`awr_weight` · logp.

    Args:
        logp: (...) current log-probability, with gradient.
        advantage: (...) advantages.
        mask: (...) rows of the loss, default all.
        **options: of `awr_weight`.

    Source: as `awr_weight`.
    """
    logp = floating(as_array(logp))
    use = row_mask(mask, logp).reshape(logp.shape)
    return -cast(awr_weight(advantage, mask=use, **options), logp) * library(logp).where(use, logp, 0.0)
