"""How likely a squashed Gaussian finds somebody else's actions, and the gradient of it."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import LOG_STD_MAX, LOG_STD_MIN
from robot_rl.types import Transitions

EDGE = 1e-4
"""Recorded actions are kept this far from the bounds, where the density of a squashed Gaussian has no limit."""


def log_density(raw: Tensor, action: Tensor, *, min_std: float | None = None, edge: float = EDGE) -> Tensor:
    """(B,) log-density of given actions under tanh(N(mean, std)).

    Args:
        raw: (B, 2A) mean and log-std of a network, the latter clamped to [-20, 2].
        action: (B, A) in [-1, 1]; clipped to +-(1 - edge).
        min_std: floor of the standard deviation, or None.
        edge: see action.

    Source: Haarnoja et al., Soft Actor-Critic Algorithms and Applications, appendix C (change of variables).
    """
    mean, wide = raw.chunk(2, dim=-1)
    log_std = wide.clamp(LOG_STD_MIN, LOG_STD_MAX)
    if min_std is not None:
        log_std = log_std.clamp_min(math.log(min_std))
    kept = action.clamp(-1.0 + edge, 1.0 - edge)
    u = torch.atanh(kept)
    z = (u - mean) * (-log_std).exp()
    density = -0.5 * z.square() - log_std - 0.5 * math.log(2.0 * math.pi) - torch.log1p(-kept.square())
    return density.sum(-1)


def human_rows(batch: Transitions) -> Tensor:
    """(B,) weight of every row in imitation losses.

    Extras "imitate" where the human-in-the-loop memory made the batch; else 1 for rows that a person drove and for
    those of a mix's second part (the demonstrations of `robot-rl train demos=…`), 0 for the rest.
    """
    if "imitate" in batch.extras:
        return batch.extras["imitate"]
    rows = batch.intervened
    if "source" in batch.extras:
        rows = rows | (batch.extras["source"] > 0)
    return rows.to(batch.reward.dtype)


def demonstrated(batch: Transitions) -> Tensor:
    """(B,) 1 for demonstrations: all rows of a log (extras "step"); else those that `human_rows` tells.

    Of windows, those whose existing steps a person drove in part.
    """
    if batch.reward.dim() > 1:
        driven = (batch.intervened & batch.mask).any(1)
        batch = replace(batch, intervened=driven, reward=batch.reward[:, 0])
    if "step" in batch.extras and "source" not in batch.extras:
        return torch.ones_like(batch.reward)
    weight = human_rows(batch)
    return weight if weight.dim() == 1 else weight[:, 0]


def imitation_grad(raw: Tensor, action: Tensor, weight: Tensor, *, min_std: float) -> tuple[Tensor, Tensor]:
    """Gradient of -sum(weight * log pi(action)) / sum(weight) by `raw`, and the loss; zeros when nothing weighs.

    Args:
        raw: (B, 2A).
        action: (B, A).
        weight: (B,) at least 0.
        min_std: floor of the standard deviation: without one, demonstrations that agree drive it to zero and the
            density without bound.

    Returns:
        (B, 2A) gradient and () loss.
    """
    total = weight.sum()
    if float(total) <= 0.0:
        return torch.zeros_like(raw), raw.new_zeros(())
    with torch.enable_grad():
        leaf = raw.detach().requires_grad_(True)
        loss = -(weight * log_density(leaf, action, min_std=min_std)).sum() / total
        (grad,) = torch.autograd.grad(loss, leaf)
    return grad, loss.detach()
