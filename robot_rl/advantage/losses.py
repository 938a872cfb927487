"""Policy losses on ratios: PPO and its clipped relatives. Sign: everything is minimised.

`policy_loss` does it all for flat rows or padded batches: masks, ratio unit, row loss, weights, aggregation. The row
functions below take clean ratios and advantages and are exact copies of the published formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from robot_rl.advantage.aggregate import mean_rows, row_weight, weighted_sum
from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.importance import bounded_weight
from robot_rl.advantage.kinds import (
    Array,
    floating,
    match_dtype,
    require_option,
)
from robot_rl.advantage.layout import NO_IDS, RowIds, loss_mask, row_mask
from robot_rl.advantage.ratios import log_ratio, unit_advantage, unit_log_ratio

Clip = float | tuple[float, float]


@dataclass(frozen=True)
class ClipRange:
    """How far a ratio may move before its row has no gradient.

    Attributes:
        width: of the clip, or (low, high); 0.28 as the high side is clip-higher.
        dual: c > 1; for A < 0 the loss is at most c·|A|. None = no bound.
        delta: the unclipped branch uses min(r, delta), which bounds it for negative advantages. None = no bound.

    Source: Schulman et al., PPO; Ye et al., dual-clip PPO; TRL (delta).
    """

    width: Clip = 0.2
    dual: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        clip_bounds(self.width)
        if self.dual is not None and self.dual <= 1:
            raise ValueError(f"dual is {self.dual}, expected a bound above 1 for a negative advantage")


def clip_bounds(clip: Clip) -> tuple[float, float]:
    """(low, high) clip widths; a single number sets both sides.

    Raises:
        ValueError: a negative width or not two numbers.
    """
    low, high = (clip, clip) if isinstance(clip, (int, float)) else tuple(clip)
    if low < 0 or high < 0:
        raise ValueError(f"clip is {clip}, expected widths >= 0: one number or (low, high)")
    return float(low), float(high)


@in_torch
def ppo_rows(ratio: Array, advantage: Array, *, clip: Clip | ClipRange = 0.2) -> Array:
    """-min(r·A, clip(r, 1 - low, 1 + high)·A), optionally bounded for negative advantages.

    Args:
        ratio: (...) probability ratio, with gradient.
        advantage: (...) advantages.
        clip: width, (low, high), or with its further bounds a `ClipRange`.

    Returns:
        (...) row losses.

    Raises:
        ValueError: negative clip.

    Source: Schulman et al., PPO; Ye et al., dual-clip PPO; TRL (delta).
    """
    clip = clip if isinstance(clip, ClipRange) else ClipRange(clip)
    low, high = clip_bounds(clip.width)
    free = ratio if clip.delta is None else torch.clip(ratio, None, clip.delta)
    worst = -torch.minimum(free * advantage, torch.clip(ratio, 1 - low, 1 + high) * advantage)
    if clip.dual is None:
        return worst
    return torch.where(advantage < 0, torch.minimum(worst, -clip.dual * advantage), worst)


@in_torch
def aepo_rows(ratio: Array, advantage: Array, *, clip: Clip = 0.2) -> Array:
    """PPO whose upper bound keeps its gradient: above 1 + high the value is that bound, the gradient that of logp.

    Args:
        ratio: (...) probability ratio, with gradient.
        advantage: (...) advantages.
        clip: width, or (low, high).

    Returns:
        (...) row losses.

    Raises:
        ValueError: negative clip.

    Source: AEPO (a port of the ARPO family).
    """
    low, high = clip_bounds(clip)
    kept = torch.where(ratio > 1 + high, (1 + high) * ratio / ratio.detach(), torch.clip(ratio, 1 - low, None))
    return torch.maximum(-ratio * advantage, -kept * advantage)


@in_torch
def cispo_rows(logp: Array, ratio: Array, advantage: Array, *, clip: Clip = (1.0, 4.0)) -> Array:
    """-sg(clip(r))·A·logp: clipped weights, every row keeps its gradient.

    Args:
        logp: (...) current log-probability, with gradient.
        ratio: (...) probability ratio.
        advantage: (...) advantages.
        clip: width, or (low, high).

    Source: MiniMax-M1, CISPO (bounds recalled).
    """
    low, high = clip_bounds(clip)
    return -torch.clip(ratio.detach(), 1 - low, 1 + high) * advantage * logp


@in_torch
def sapo_rows(ratio: Array, advantage: Array, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Array:
    """-f(r)·A with the soft gate f(r) = (4/tau)·sigmoid(tau·(r - 1)); slope 1 and value 2/tau at r = 1.

    Args:
        ratio: (...) probability ratio, with gradient.
        advantage: (...) advantages.
        tau_positive: temperature where A > 0.
        tau_negative: temperature elsewhere.

    Raises:
        ValueError: a temperature is not positive.

    Source: SAPO, soft adaptive policy optimisation; verl, TRL.
    """
    if tau_positive <= 0 or tau_negative <= 0:
        raise ValueError(f"temperatures are {tau_positive} and {tau_negative}, expected positive numbers")
    tau = torch.where(advantage > 0, torch.ones_like(ratio) * tau_positive, torch.ones_like(ratio) * tau_negative)
    tau = tau.detach()
    gate = 4.0 / tau / (1.0 + torch.exp(-torch.clip(tau * (ratio - 1.0), -60.0, 60.0)))
    return -gate * advantage


@in_torch
def reinforce_rows(logp: Array, advantage: Array) -> Array:
    """-A·logp.

    Args:
        logp: (...) current log-probability, with gradient.
        advantage: (...) advantages.

    Source: Williams 1992.
    """
    return -advantage * logp


@in_torch
def gmpo_rows(
    log_ratios: Array,
    advantage: Array,
    *,
    clip: Clip = 0.4,
    episode: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """-A · geometric mean of the sequence's ratios, each clipped in log space towards its advantage.

    Args:
        log_ratios: (N,) or (B, T) per-row log-ratios, with gradient.
        advantage: like `log_ratios`, equal inside an episode.
        clip: width in log space, or (low, high).
        episode: per-row ids; default: each line of (B, T).
        mask: rows of the loss, default all.

    Returns:
        Row losses like `log_ratios`: the sequence's loss on each of its rows (aggregate with seq_mean_token_mean).

    Raises:
        ValueError: negative clip, missing ids or wrong shapes.

    Source: Zhao et al., Geometric-Mean Policy Optimization; verl (constants recalled).
    """
    low, high = clip_bounds(clip)
    clipped = torch.clip(log_ratios, -low, high)
    toward = torch.where(advantage >= 0, torch.minimum(log_ratios, clipped), torch.maximum(log_ratios, clipped))
    geometric = torch.exp(unit_log_ratio(toward, "sequence_geo", episode=episode, mask=mask))
    return -advantage * geometric


_ROW_LOSSES = ("ppo", "gspo", "gmpo", "cispo", "sapo", "aepo", "reinforce")
_SEQUENCE_LOSSES = ("gspo", "gmpo")
"""One loss per sequence; a mean over rows would count a long sequence more often than a short one."""
_DEFAULT_CLIP: dict[str, Clip] = {"gspo": (3e-4, 4e-4), "gmpo": 0.4, "cispo": (1.0, 4.0)}


def default_aggregation(kind: str) -> str:
    """Mode of aggregation by which a policy loss is defined."""
    return "seq_mean_token_mean" if kind in _SEQUENCE_LOSSES else "token_mean"


@in_torch
def policy_loss(
    logp: Array,
    old_logp: Array,
    advantage: Array,
    *,
    mask: Array | None = None,
    clip: Clip | ClipRange | None = None,
    kind: str = "ppo",
    ratio_unit: str | None = None,
    ids: RowIds = NO_IDS,
    weight: Array | None = None,
    aggregation: str | Array | None = None,
) -> Array:
    """Policy loss of a batch, as one number with gradient in `logp`.

    Args:
        logp: (N,) or (B, T) current log-probability of the action of each row; chunks sampled jointly are one turn of
            several rows or one row with the summed log-probability.
        old_logp: like `logp`, of the policy at the start of the update.
        advantage: like `logp`; used without gradient.
        mask: rows of the loss, default all. Masked rows may hold NaN and get an exactly zero gradient.
        clip: width, (low, high), or for "ppo" and "gspo" a `ClipRange` (dual clip, delta); default 0.2, or the value of
            the method ("gspo" (3e-4, 4e-4), "gmpo" 0.4 in log space, "cispo" (1, 4)).
        kind: "ppo", "gspo" (ppo on the geometric sequence ratio), "gmpo", "cispo", "sapo", "aepo", "reinforce".
        ratio_unit: "step", "turn", "turn_geo", "sequence", "sequence_geo"; default "step", for gspo "sequence_geo".
        ids: turn, episode and group of each row, for the ratio units and aggregations that need them.
        weight: factor per row, without gradient: importance weights, duration weights. The denominator is unchanged.
        aggregation: mode of `aggregate.row_weight`; default "token_mean", for gspo and gmpo "seq_mean_token_mean", the
            mean over sequences by which they are defined. Or the weights themselves: those of `row_weight` over the
            whole optimiser batch when this call sees a part of it, or of a mode with options of its own ("const").

    Returns:
        0-d loss.

    Raises:
        ValueError: unknown option, wrong shapes, or missing ids.

    Source: PPO, dual clip, GSPO, GMPO, CISPO, SAPO, AEPO: see the row functions.
    """
    logp = floating(logp)
    rows = policy_loss_rows(logp, old_logp, advantage, mask=mask, clip=clip, kind=kind, ratio_unit=ratio_unit, ids=ids)
    use = loss_mask(mask, logp)
    if weight is not None:
        factor = weight.detach()
        rows = rows * match_dtype(factor if use is None else torch.where(use, factor, 0.0), logp)
    if aggregation is None:
        aggregation = default_aggregation(kind)
    if not isinstance(aggregation, str):
        return weighted_sum(rows, aggregation)
    if aggregation == "token_mean":
        return mean_rows(rows, use)
    used = row_mask(None, logp).reshape(logp.shape) if use is None else use
    return weighted_sum(rows, row_weight(used, aggregation, ids))


@in_torch
def policy_loss_rows(
    logp: Array,
    old_logp: Array,
    advantage: Array,
    *,
    mask: Array | None = None,
    clip: Clip | ClipRange | None = None,
    kind: str = "ppo",
    ratio_unit: str | None = None,
    ids: RowIds = NO_IDS,
) -> Array:
    """The loss of each row before aggregation, 0 where masked; arguments as in `policy_loss`.

    Returns:
        Array like `logp`.

    Raises:
        ValueError: as `policy_loss`, or an option that the kind does not have.
    """
    require_option("kind", kind, _ROW_LOSSES)
    logp = floating(logp)
    advantage, old_logp = advantage.detach(), old_logp.detach()
    if tuple(advantage.shape) != tuple(logp.shape):
        raise ValueError(f"advantage has shape {tuple(advantage.shape)}, expected that of logp, {tuple(logp.shape)}")
    if kind in _SEQUENCE_LOSSES and ratio_unit not in (None, "sequence_geo"):
        raise ValueError(f"ratio_unit is {ratio_unit!r}, but {kind!r} is defined on 'sequence_geo'; use kind='ppo'")
    if clip is None:
        clip = _DEFAULT_CLIP.get(kind, 0.2)
    # Only the two kinds of PPO have the further bounds; the others are defined by the width alone.
    whole = clip if isinstance(clip, ClipRange) else ClipRange(clip)
    width = whole.width
    if kind not in ("ppo", "gspo") and (whole.dual is not None or whole.delta is not None):
        raise ValueError(f"dual and delta of the clip belong to 'ppo' and 'gspo', got kind {kind!r}; leave them out")
    use = loss_mask(mask, logp)
    step = log_ratio(logp, old_logp, mask=use)
    if use is not None:
        # An advantage of 0 makes a row loss of 0 with a gradient of 0, once the other factors are finite.
        advantage = torch.where(use, advantage, 0.0)
    advantage = match_dtype(advantage, logp)
    if kind == "gmpo":
        rows = gmpo_rows(step, advantage, clip=width, episode=ids.episode, mask=use)
        return rows if use is None else torch.where(use, rows, 0.0)
    unit = ("sequence_geo" if kind == "gspo" else "step") if ratio_unit is None else ratio_unit
    if unit != "step":
        step = unit_log_ratio(step, unit, turn=ids.turn, episode=ids.episode, mask=use)
        advantage = unit_advantage(advantage, unit, turn=ids.turn, episode=ids.episode, mask=use)[0]
    ratio = torch.exp(step)
    if kind in ("ppo", "gspo"):
        rows = ppo_rows(ratio, advantage, clip=whole)
    elif kind == "sapo":
        rows = sapo_rows(ratio, advantage)
    elif kind == "aepo":
        rows = aepo_rows(ratio, advantage, clip=width)
    else:
        clean = logp if use is None else torch.where(use, logp, 0.0)
        rows = (
            reinforce_rows(clean, advantage) if kind == "reinforce" else cispo_rows(clean, ratio, advantage, clip=width)
        )
    # A unit hands its advantage to the masked rows inside it too.
    return rows if use is None or unit == "step" else torch.where(use, rows, 0.0)


@in_torch
def decoupled_policy_loss(
    logp: Array,
    proximal_logp: Array,
    behaviour_logp: Array,
    advantage: Array,
    *,
    mask: Array | None = None,
    w_mode: str = "none",
    cap: float = 5.0,
    floor: float = 0.0,
    **options: Any,
) -> Array:
    """PPO around the proximal policy, weighted by proximal over behaviour probability; for stale data.

    Args:
        logp: (N,) or (B, T) current log-probability.
        proximal_logp: at the start of the update, or from `loglinear_proximal`.
        behaviour_logp: of the policy that acted.
        advantage: like `logp`.
        mask: rows of the loss, default all; it stays the denominator whatever the weights do.
        w_mode: "none", "clamp" (min(w, cap)) or "mask" (0 outside [floor, cap]). The weight is always applied.
        cap: upper bound.
        floor: lower bound of "mask".
        **options: of `policy_loss`.

    Returns:
        0-d loss.

    Raises:
        ValueError: as `policy_loss`.

    Source: Hilton et al., Batch size-invariance for policy optimization; AReaL (which needs a rejection block).
    """
    logp = floating(logp)
    proximal = proximal_logp.detach()
    step = log_ratio(proximal, behaviour_logp.detach(), mask=mask)
    weight = bounded_weight(torch.exp(step), w_mode, cap=cap, floor=floor)
    return policy_loss(logp, proximal, advantage, mask=mask, weight=weight, **options)


@in_torch
def policy_metrics(
    logp: Array,
    old_logp: Array,
    advantage: Array,
    *,
    mask: Array | None = None,
    clip: Clip | ClipRange = 0.2,
    ratio_unit: str = "step",
    ids: RowIds = NO_IDS,
) -> dict[str, Array]:
    """What to log about an update; no gradient, no wait for the device.

    Args:
        logp: see `policy_loss`.
        old_logp: see `policy_loss`.
        advantage: see `policy_loss`.
        mask: see `policy_loss`.
        clip: see `policy_loss`.
        ratio_unit: see `policy_loss`.
        ids: see `policy_loss`.

    Returns:
        0-d float64 arrays: `ratio_max`, `clip_low_fraction`, `clip_high_fraction`, `clip_dual_fraction` (shares of
        masked rows on the flat side of the bound), `advantage_mean`, `advantage_std`, `advantage_max`, `mask_share`,
        `unequal_units`.

    Raises:
        ValueError: as `policy_loss`.
    """
    clip = clip if isinstance(clip, ClipRange) else ClipRange(clip)
    low, high = clip_bounds(clip.width)
    logp, advantage = floating(logp).detach(), advantage.detach()
    use = row_mask(mask, logp).reshape(logp.shape)
    step = log_ratio(logp, old_logp.detach(), mask=use)
    ratio = torch.exp(unit_log_ratio(step, ratio_unit, turn=ids.turn, episode=ids.episode, mask=use)).double()
    a = torch.where(use, advantage.double(), 0.0)
    count = use.double().sum()
    safe = torch.maximum(count, torch.ones_like(count))
    mean = a.sum() / safe
    square = (torch.where(use, a - mean, 0.0) ** 2).sum()
    bound = float("inf") if clip.dual is None else clip.dual
    return {
        "ratio_max": torch.where(use, ratio, 0.0).max(),
        "clip_low_fraction": (use & (a < 0) & (ratio < 1 - low)).double().sum() / safe,
        "clip_high_fraction": (use & (a > 0) & (ratio > 1 + high)).double().sum() / safe,
        "clip_dual_fraction": (use & (a < 0) & (ratio > bound)).double().sum() / safe,
        "advantage_mean": mean,
        "advantage_std": torch.sqrt(square / torch.maximum(count - 1, torch.ones_like(count))),
        "advantage_max": torch.abs(a).max(),
        "mask_share": count / max(int(use.reshape(-1).shape[0]), 1),
        "unequal_units": unit_advantage(advantage, ratio_unit, turn=ids.turn, episode=ids.episode, mask=use)[1],
    }
