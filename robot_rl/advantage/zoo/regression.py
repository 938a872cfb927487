"""Regression, classification and sampling losses that no learner uses yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from robot_rl.advantage.arrays import host, in_torch
from robot_rl.advantage.kinds import (
    Array,
    floating,
    match_dtype,
    readable,
    require_flat,
    require_option,
    require_rows,
)
from robot_rl.advantage.layout import episode_ids, row_mask
from robot_rl.advantage.losses import Clip, clip_bounds
from robot_rl.advantage.ratios import log_ratio
from robot_rl.advantage.returns import continues
from robot_rl.advantage.segments import factorise, seg_sum


@in_torch
def pair_regression(log_ratio_gap: Array, reward_gap: Array, *, eta: float = 1.0, paper_form: bool = False) -> Array:
    """Squared error between the difference of two log-ratios and that of two rewards: REBEL and REFUEL.

    Args:
        log_ratio_gap: (P,) difference of the summed log-ratios (current over old) of two independent continuations
            from the same prefix; REFUEL sums the tokens of the sampled turn only.
        reward_gap: (P,) difference of their rewards.
        eta: step size.
        paper_form: (gap / eta - reward)^2; default is the released (gap - eta · reward)^2.

    Returns:
        (P,) losses.

    Raises:
        ValueError: eta is not positive.

    Source: Gao et al., REBEL; Gao et al., REFUEL, Regressing the Relative Future.
    """
    if eta <= 0:
        raise ValueError(f"eta is {eta}, expected a positive step size")
    gap = log_ratio_gap
    reward = reward_gap.detach()
    return (gap / eta - reward) ** 2 if paper_form else (gap - eta * reward) ** 2


@in_torch
def refuel_loss(
    logp: Array,
    old_logp: Array,
    pair: Array,
    second: Array,
    reward: Array,
    *,
    mask: Array | None = None,
    **options: Any,
) -> Array:
    """`pair_regression` from per-row log-probabilities of two continuations per prefix.

    Args:
        logp: (N,) current log-probability, with gradient.
        old_logp: (N,) of the policy that sampled.
        pair: (N,) dense pair id of each row.
        second: (N,) bool, true on the rows of the second continuation.
        reward: (P, 2) reward-to-go of the first and second continuation.
        mask: (N,) rows of the sampled turn, default all.
        **options: `eta`, `paper_form`.

    Returns:
        (P,) losses.

    Raises:
        ValueError: wrong shapes or ids.

    Source: Gao et al., REFUEL; ZhaolinGao/REFUEL.
    """
    logp = floating(logp)
    if len(reward.shape) != 2 or int(reward.shape[1]) != 2:
        raise ValueError(f"reward has shape {tuple(reward.shape)}, expected (pairs, 2)")
    step = log_ratio(logp, old_logp.detach(), mask=mask)
    sign = 1.0 - 2.0 * second.double()
    gap = seg_sum(step.double() * sign, pair, int(reward.shape[0]))
    return match_dtype(pair_regression(gap, reward[:, 0].double() - reward[:, 1].double(), **options), logp)


@in_torch
def a_lol_rows(logp: Array, ref_logp: Array, advantage: Array, *, clip: Clip = 0.2, mask: Array | None = None) -> Array:
    """-max(A, 0) · clip(sg(policy / reference)) · logp.

    Args:
        logp: (...) current log-probability, with gradient; usually one row per sequence.
        ref_logp: (...) of the reference policy.
        advantage: (...) reward minus the reference policy's value.
        clip: width, or (low, high).
        mask: (...) rows of the loss, default all.

    Returns:
        (...) row losses.

    Raises:
        ValueError: shapes differ or negative clip.

    Source: Baheti et al., Leftover Lunch (A-LoL); abaheti95/LoL-RL. The clip width is ours.
    """
    low, high = clip_bounds(clip)
    logp = floating(logp)
    ratio = torch.exp(log_ratio(logp.detach(), ref_logp.detach(), mask=mask))
    use = row_mask(mask, logp).reshape(logp.shape)
    gain = match_dtype(torch.where(use, torch.clip(advantage.detach(), 0.0, None), 0.0), logp)
    return -gain * torch.clip(ratio, 1 - low, 1 + high) * torch.where(use, logp, 0.0)


@in_torch
def pacs_logit(
    logp: Array, old_logp: Array, episode: Array, group: Array, *, beta: float = 1.0, mask: Array | None = None
) -> Array:
    """Leave-one-out of beta · summed log-ratio over the group, with gradient: the score of each rollout.

    Args:
        logp: (N,) or (B, T) current log-probability.
        old_logp: like `logp`.
        episode: per-row dense ids, or None for the lines of (B, T).
        group: (E,) dense group of each episode.
        beta: temperature.
        mask: rows of the loss, default all.

    Returns:
        (E,) logits; 0 for single-member groups.

    Raises:
        ValueError: wrong shapes or ids.

    Source: PACS; ritzz-ai/PACS, with the mask applied.
    """
    logp = floating(logp)
    n = require_flat("group", group)
    step = log_ratio(logp, old_logp.detach(), mask=mask).reshape(-1)
    total = beta * seg_sum(step, episode_ids(episode, logp), n, mask=row_mask(mask, logp))
    cells, count = factorise(group)
    ones = torch.ones_like(total)
    size = seg_sum(ones, cells, count)[cells]
    mean = seg_sum(total, cells, count)[cells] / size
    out = size / torch.where(size > 1, size - 1.0, 1.0) * (total - mean)
    return match_dtype(torch.where(size > 1, out, 0.0), logp)


@in_torch
def pacs_loss(logit: Array, label: Array) -> Array:
    """Binary cross-entropy of the rollout scores with the verified outcomes.

    Args:
        logit: (E,) from `pacs_logit`.
        label: (E,) 1 = correct, 0 = incorrect.

    Returns:
        (E,) losses.

    Raises:
        ValueError: wrong shapes.

    Source: PACS; ritzz-ai/PACS.
    """
    y = match_dtype(label, logit)
    require_rows(require_flat("logit", logit), label=y)
    # max(z, 0) - z·y + log(1 + exp(-|z|)) never overflows.
    return torch.clip(logit, 0.0, None) - logit * y + torch.log1p(torch.exp(-torch.abs(logit)))


@in_torch
def rover_rows(q: Array, mean_q: Array, reward: Array, episode: Array) -> Array:
    """(Q - sg(reward + mean over actions of the next Q))^2, Q = logp - old_logp of the action taken.

    Args:
        q: (N,) Q of the action taken, with gradient.
        mean_q: (N,) mean over all actions of Q at the same row.
        reward: (N,) centred reward of each row.
        episode: (N,) episode ids, not falling; the last row of an episode has no next Q.

    Returns:
        (N,) row losses, for the token mean.

    Raises:
        ValueError: wrong shapes.

    Source: ROVER, random policy valuation; tinnerhrhe/ROVER.
    """
    q = floating(q)
    mean_q, reward = mean_q.detach(), reward.detach()
    require_rows(require_flat("q", q), mean_q=mean_q, reward=reward, episode=episode)
    after = torch.zeros_like(mean_q)
    after[:-1] = mean_q[1:]
    return (q - (reward + torch.where(continues(episode), after, 0.0))) ** 2


@in_torch
def sign_weighted_rows(logp: Array, score: Array, *, positive: float = 0.1, mask: Array | None = None) -> Array:
    """Correct rows: positive · (-logp); incorrect rows: +logp.

    Args:
        logp: (...) current log-probability, with gradient.
        score: (...) exactly 1 (correct) or 0 (incorrect) on every row of the rollout.
        positive: 0.1 is W-REINFORCE, 0 is NSR (negative samples only), 1 is REINFORCE with ±1.
        mask: (...) rows of the loss, default all.

    Returns:
        (...) row losses.

    Raises:
        ValueError: a masked score is neither 0 nor 1 (not checked on CUDA).

    Source: Zhu et al., The Surprising Effectiveness of Negative Reinforcement (RLVR-Decomposed).
    """
    logp = floating(logp)
    use = row_mask(mask, logp).reshape(logp.shape)
    if readable(score) and bool((use & (score != 0) & (score != 1)).any()):
        bad = (use & (score != 0) & (score != 1)).reshape(-1).long().argmax()
        raise ValueError(f"score at row {int(bad)} is {float(score.reshape(-1)[bad])}, expected exactly 0 or 1")
    clean = torch.where(use, logp, 0.0)
    return torch.where(score == 1, -positive * clean, clean)


@in_torch
def pf_weight(score: Array, kind: str = "pow", *, power: float = 2.0) -> Array:
    """Probability weights by which rollouts are resampled before PPO.

    Args:
        score: (E,) scores.
        kind: "pow" |score|^power; "max_min" 1 at the largest and the smallest score, else 0; "max_random" 0.4 at the
            largest, 0.1 elsewhere.
        power: of "pow".

    Returns:
        (E,) float64 weights that sum to 1; uniform if all would be 0. NaN scores get 0.

    Raises:
        ValueError: unknown kind.

    Source: Shen et al., PF-PPO, policy filtration; verl (values of max_random recalled).
    """
    require_option("kind", kind, ["pow", "max_min", "max_random"])
    score = score.double()
    ok = ~torch.isnan(score)
    low = torch.where(ok, score, float("inf")).min()
    high = torch.where(ok, score, -float("inf")).max()
    if kind == "pow":
        weight = torch.abs(torch.where(ok, score, 0.0)) ** power
    elif kind == "max_min":
        weight = ((score == low) | (score == high)).double()
    else:
        weight = 0.3 * (score == high).double() + 0.1 * ok.double()
    total = weight.sum()
    even = ok.double() / torch.maximum(ok.double().sum(), torch.ones_like(total))
    return torch.where(total > 0, weight / torch.where(total > 0, total, torch.ones_like(total)), even)


@in_torch
def resample(weight: Array, n: int, *, generator: np.random.Generator) -> Array:
    """Rows drawn with replacement in proportion to their weights (PF-PPO, or A-LoL with weights max(A, 0)).

    Args:
        weight: (E,) weights >= 0, not all 0.
        n: number of draws.
        generator: seeded np.random.Generator.

    Returns:
        (n,) int64 indices of the kind and device of `weight`.

    Raises:
        ValueError: no weight is positive.
    """
    plain = host(weight).astype(np.float64)
    total = plain.sum()
    if not total > 0:
        raise ValueError("all weights are 0, expected at least one positive weight; skip the resampling")
    index = generator.choice(len(plain), size=n, p=plain / total)
    return torch.from_numpy(index).to(weight.device)
