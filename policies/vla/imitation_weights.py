"""Which rows of a log an imitation copies, and how much: by advantage, by progress, or by a mark that it reads."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def progress_weights(
    gained: Tensor, mask: Tensor | None = None, *, kappa: float = 0.01, moments: tuple[float, float] | None = None
) -> Tensor:
    """Weights of chunks by the progress d that was made while they were executed (RA-BC).

    soft = clip((d - (m - 2 s)) / (4 s), 0, 1), m = max(mean, 0) and s the standard deviation of d over the batch;
    0 for d < 0, soft up to kappa, 1 above; unknown progress (NaN) counts as 1.

    Args:
        gained: (B,) progress behind the chunk minus progress before it.
        mask: (B,) rows that count for the moments, default all.
        kappa: progress above which a chunk is copied whole.
        moments: (m, s) in place of those of the batch.

    Returns:
        (B,) weights in [0, 1], before any normalisation.

    Source: huggingface/lerobot, reward-aligned behaviour cloning with SARM (https://arxiv.org/abs/2509.25358).
    """
    known = ~torch.isnan(gained)
    if moments is None:
        some = gained[known if mask is None else known & mask]
        mean = float(some.mean().clamp_min(0.0)) if len(some) else 0.0
        spread = float(some.std(unbiased=False)) if len(some) else 0.0
    else:
        mean, spread = moments
    soft = ((gained - (mean - 2.0 * spread)) / (4.0 * spread + 1e-8)).clamp(0.0, 1.0)
    weight = torch.where(gained > kappa, torch.ones_like(soft), soft)
    weight = torch.where(gained < 0, torch.zeros_like(soft), weight)
    return torch.where(known, weight, torch.ones_like(weight))


def top_share(advantage: Tensor, mask: Tensor, share: float = 0.3) -> Tensor:
    """(B,) bool: the rows whose advantage is among the best `share` of those that count (RECAP marks 30 % as good).

    By rank, not by a threshold: where many advantages are equal, exactly that share is marked.

    Source: Physical Intelligence, pi*0.6 (RECAP).
    """
    count = math.ceil(share * int(mask.sum()))
    order = torch.where(mask, advantage, torch.full_like(advantage, -torch.inf)).argsort(descending=True, stable=True)
    good = torch.zeros_like(mask)
    good[order[:count]] = True
    return good


def mean_one(weight: Tensor, mask: Tensor) -> Tensor:
    """Weights (B,) scaled to mean 1 over the rows that count; all zero stays all zero."""
    total = (weight * mask).sum()
    return weight * mask * (mask.sum() / total) if total > 0 else torch.zeros_like(weight)
