"""How likely a squashed Gaussian finds somebody else's actions, and the gradient of it."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import LOG_STD_MAX, LOG_STD_MIN
from robot_rl.types import Transitions

EDGE = 1e-4
"""Actions whose density is asked for are kept this far from the bounds, where a squashed Gaussian's has no limit."""

CLONE_EDGE = 0.05
"""The same for actions that are cloned. At 1e-4 the mean is pulled to atanh(0.9999) = 4.95, where tanh has a slope of
2e-4 and no reward can move a gripper any more; at 0.05 to 1.83, slope 0.1.

Source: LeCun et al., Efficient BackProp, section 4.5 (targets inside the range of the sigmoid).
"""

SWITCH_WEIGHT = 10.0
"""Weight of the rows whose command opens or closes a gripper: one in 18 of a demonstration on `pick`, without which the
clone stands at the object and keeps the fingers open.

Source: Wen et al., Keyframe-Focused Visual Imitation Learning (larger weights where the expert's action changes).
"""


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


def human_rows(batch: Transitions, *, switch_weight: float | None = None) -> Tensor:
    """(B,) weight of every row in imitation losses.

    Extras "imitate" where the human-in-the-loop memory made the batch; else 1 for rows that a person drove and for
    those of a mix's second part (the demonstrations of `robot-rl train demos=…`), 0 for the rest.

    Args:
        batch: rows; their extras "grip_penalty", where there are any, are below 0 where a gripper was switched.
        switch_weight: in place of the weight of such rows, unless that is 0. Also of those at the beginning of an
            intervention, which count less otherwise: a person who takes over to close the gripper does it there.
    """
    if "imitate" in batch.extras:
        weight = batch.extras["imitate"]
    else:
        rows = batch.intervened
        if "source" in batch.extras:
            rows = rows | (batch.extras["source"] > 0)
        weight = rows.to(batch.reward.dtype)
    if switch_weight is None or "grip_penalty" not in batch.extras:
        return weight
    switched = (batch.extras["grip_penalty"] < 0.0) & (weight > 0.0)
    return torch.where(switched, torch.full_like(weight, switch_weight), weight)


def demonstration_mask(batch: Transitions) -> Tensor:
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


def imitation_loss(
    raw: Tensor,
    action: Tensor,
    weight: Tensor,
    *,
    min_std: float,
    max_std: float = math.inf,
    edge: float = CLONE_EDGE,
) -> Tensor:
    """-sum(weight * log pi(action)) / sum(weight), zero when nothing weighs.

    Args:
        raw: (B, 2A).
        action: (B, A).
        weight: (B,) at least 0.
        min_std: floor of the standard deviation: without one, demonstrations that agree drive it to zero and the
            density without bound.
        max_std: the mean is pulled as by a Gaussian no wider than this. The likelihood pulls with (u - mean) / std^2: a
            policy that is wide because it explores would hardly hear what the person said.
        edge: actions are clipped to +-(1 - edge).

    Returns:
        ().

    Source: Stirn et al., Faithful Heteroscedastic Regression with Neural Networks (a mean that learns whatever the
        variance says).
    """
    total = weight.sum()
    if float(total) <= 0.0:
        return raw.sum() * 0.0
    loss = -log_density(raw, action, min_std=min_std, edge=edge)
    if max_std < math.inf:
        mean, wide = raw.chunk(2, dim=-1)
        u = torch.atanh(action.clamp(-1.0 + edge, 1.0 - edge))
        missing = (max_std**-2 - (-2.0 * wide.detach().clamp(LOG_STD_MIN, LOG_STD_MAX)).exp()).clamp_min(0.0)
        loss = loss + 0.5 * (missing * (u - mean).square()).sum(-1)
    return (weight * loss).sum() / total
