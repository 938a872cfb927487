"""Corrections for stale and foreign data that no learner uses yet."""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.importance import bounded_weight
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    require_option,
)
from robot_rl.advantage.layout import episode_ids, row_mask
from robot_rl.advantage.ratios import LOG_CLAMP, log_ratio, unit_log_ratio
from robot_rl.advantage.segments import factorise, seg_count, seg_max, seg_sum


@in_torch
def importance_weight(
    logp: Array,
    logp_behaviour: Array,
    *,
    level: str = "step",
    mode: str = "clamp",
    cap: float = 2.0,
    floor: float = 0.0,
    turn: Array | None = None,
    episode: Array | None = None,
    mask: Array | None = None,
    zero_fallback: bool = False,
) -> Array:
    """Truncated or masked weight exp(logp - logp_behaviour), without gradient.

    Args:
        logp: (N,) or (B, T), usually the proximal log-probability.
        logp_behaviour: like `logp`.
        level: "step", "sequence" (product), "sequence_geo", "turn", "turn_geo".
        mode: "clamp", "mask" or "none", see `bounded_weight`.
        cap: 2 is verl's truncation, 3 is TRL's with a sequence mask, 1 is DART's.
        floor: lower bound of "mask" (IcePop keeps a two-sided band per token).
        turn: per-row turn ids.
        episode: per-row episode ids; default: each line of (B, T).
        mask: rows of the loss, default all.
        zero_fallback: episodes whose behaviour log-probabilities are all exactly 0 were not recorded; give them
            weight 1 (DART).

    Returns:
        Array like `logp`; 0 where masked.

    Raises:
        ValueError: unknown option, missing ids or wrong shapes.

    Source: Yao et al., Your efficient RL framework secretly brings you off-policy training (TIS); verl; TRL; DART.
    """
    logp = logp.detach()
    behaviour = logp_behaviour.detach()
    step = log_ratio(logp, behaviour, mask=mask)
    weight = torch.exp(unit_log_ratio(step, level, turn=turn, episode=episode, mask=mask))
    weight = bounded_weight(weight, mode, cap=cap, floor=floor)
    use = row_mask(mask, logp)
    if zero_fallback:
        ids, count = factorise(episode_ids(episode, logp))
        recorded = seg_count(ids, count, mask=use & (behaviour.reshape(-1) != 0)) > 0
        weight = torch.where(recorded[ids].reshape(logp.shape), weight, 1.0)
    return torch.where(use.reshape(logp.shape), weight, 0.0)


@in_torch
def veto_mask(
    weight: Array, *, threshold: float = 1e-4, episode: Array | None = None, mask: Array | None = None
) -> Array:
    """Rows of episodes in which no row's weight is catastrophically small.

    Args:
        weight: (N,) or (B, T) unbounded per-step weights.
        threshold: one masked row below it drops the whole episode.
        episode: per-row ids; default: each line of (B, T).
        mask: rows of the loss, default all.

    Returns:
        bool like `weight`: the mask that remains.

    Raises:
        ValueError: missing ids or wrong shapes.

    Source: verl, rollout importance-sampling veto; hkust-nlp/KernelGYM.
    """
    use = row_mask(mask, weight)
    ids, count = factorise(episode_ids(episode, weight))
    vetoed = seg_count(ids, count, mask=use & (weight.reshape(-1) < threshold)) > 0
    return (use & ~vetoed[ids]).reshape(weight.shape)


@in_torch
def rejection_mask(
    logp: Array,
    logp_behaviour: Array,
    *,
    metric: str = "ratio",
    reduce: str = "mean",
    bounds: tuple[float, float] = (0.0, 2.0),
    episode: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """Rows of episodes whose mismatch with the behaviour policy lies in bounds.

    Args:
        logp: (N,) or (B, T), usually proximal.
        logp_behaviour: like `logp`.
        metric: "ratio" (reduced in log space: sum = product, mean = geometric mean), or the per-row divergence
            estimates "k1", "k2", "k3" of d = behaviour - proximal.
        reduce: "sum", "mean" or "max" over the masked rows of the episode.
        bounds: lowest and highest accepted value.
        episode: per-row ids; default: each line of (B, T).
        mask: rows of the loss, default all.

    Returns:
        bool like `logp`: the mask that remains.

    Raises:
        ValueError: unknown option, missing ids or wrong shapes.

    Source: verl rollout rejection; KernelGYM uses ratio, mean, (0.999, 1.001).
    """
    require_option("metric", metric, ["ratio", "k1", "k2", "k3"])
    require_option("reduce", reduce, ["sum", "mean", "max"])
    logp = logp.detach()
    use = row_mask(mask, logp)
    step = log_ratio(logp, logp_behaviour.detach(), mask=mask).double().reshape(-1)
    rows = {"ratio": step, "k1": -step, "k2": 0.5 * step * step, "k3": torch.exp(step) - 1.0 - step}[metric]
    ids, count = factorise(episode_ids(episode, logp))
    if reduce == "max":
        value = seg_max(rows, ids, count, mask=use)
    else:
        value = seg_sum(rows, ids, count, mask=use)
        if reduce == "mean":
            number = seg_count(ids, count, mask=use)
            value = value / torch.where(number > 0, number, 1.0)
    if metric == "ratio":
        value = torch.exp(torch.clip(value, -LOG_CLAMP, LOG_CLAMP))
    kept = (value >= bounds[0]) & (value <= bounds[1])
    return (use & kept[ids]).reshape(logp.shape)


@in_torch
def loglinear_proximal(logp: Array, logp_behaviour: Array, version: Array, current_version: int) -> Array:
    """Proximal log-probability without a forward pass: interpolated between behaviour and current by version.

    Args:
        logp: (...) current log-probability.
        logp_behaviour: (...) behaviour log-probability.
        version: (...) policy version that generated the row.
        current_version: version of the current policy.

    Returns:
        (...) behaviour + alpha · (current - behaviour), alpha = clip((cur - 1 - v) / (cur - v), 0, 1) and 0 where
        v >= cur; without gradient.

    Source: AReaL, log-linear proximal approximation.
    """
    logp = logp.detach()
    behaviour = logp_behaviour.detach()
    age = current_version - version.double()
    alpha = torch.where(age > 0, torch.clip((age - 1.0) / torch.where(age > 0, age, 1.0), 0.0, 1.0), 0.0)
    return match_dtype(behaviour.double() + alpha * (logp - behaviour).double(), logp)


@in_torch
def m2po_mask(log_ratios: Array, *, tau: float = 0.04, mask: Array | None = None) -> Array:
    """Rows that remain when the largest squared log-ratios are dropped until their mean is at most tau.

    Args:
        log_ratios: (N,) or (B, T).
        tau: largest mean square.
        mask: rows of the loss, default all.

    Returns:
        bool like `log_ratios`.

    Raises:
        ValueError: tau is negative.

    Source: M2PO, second-moment trust policy optimisation, as in AReaL (tau recalled).
    """
    if tau < 0:
        raise ValueError(f"tau is {tau}, expected a mean square >= 0")
    log_ratios = log_ratios.detach()
    use = row_mask(mask, log_ratios)
    square = torch.where(use, log_ratios.reshape(-1).double() ** 2, float("inf"))
    order = torch.argsort(square, stable=True)
    rising = torch.where(use, square, 0.0)[order]
    member = use.double()[order]
    number = torch.cumsum(member, 0)
    mean = torch.cumsum(rising, 0) / torch.where(number > 0, number, 1.0)
    # The mean of the k smallest never falls with k, so "mean <= tau" marks a prefix of the sorted rows.
    kept = torch.zeros_like(use)
    kept[order] = (mean <= tau) & (member > 0)
    return kept.reshape(log_ratios.shape)
