"""Policy losses on ratios: PPO and its clipped relatives. Sign: everything is minimised.

`policy_loss` does it all for flat rows or padded batches: masks, ratio unit, row loss, weights, aggregation. The row
functions below take clean ratios and advantages and are exact copies of the published formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from robot_rl.advantage.aggregate import mean_rows, row_weight, weighted_sum
from robot_rl.advantage.importance import bounded_weight
from robot_rl.advantage.kinds import (
    Array,
    as_array,
    cast,
    detach,
    double,
    floating,
    library,
    require_option,
)
from robot_rl.advantage.layout import loss_mask, row_mask
from robot_rl.advantage.ratios import log_ratio, unit_advantage, unit_log_ratio

Clip = float | tuple[float, float]


def clip_bounds(clip: Clip) -> tuple[float, float]:
    """(low, high) clip widths; a single number sets both sides.

    Raises:
        ValueError: a negative width or not two numbers.
    """
    low, high = (clip, clip) if isinstance(clip, (int, float)) else tuple(clip)
    if low < 0 or high < 0:
        raise ValueError(f"clip is {clip}, expected widths >= 0: one number or (low, high)")
    return float(low), float(high)


def ppo_rows(
    ratio: Array, advantage: Array, *, clip: Clip = 0.2, dual_clip: float | None = None, delta: float | None = None
) -> Array:
    """-min(r·A, clip(r, 1 - low, 1 + high)·A), optionally bounded for negative advantages.

    Args:
        ratio: (...) probability ratio, with gradient.
        advantage: (...) advantages.
        clip: width, or (low, high); 0.28 as the high side is clip-higher.
        dual_clip: c > 1; for A < 0 the loss is at most c·|A|.
        delta: the unclipped branch uses min(r, delta), which bounds it for negative advantages.

    Returns:
        (...) row losses.

    Raises:
        ValueError: negative clip, or dual_clip <= 1.

    Source: Schulman et al., PPO; Ye et al., dual-clip PPO; TRL (delta).
    """
    low, high = clip_bounds(clip)
    xp = library(ratio, advantage)
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip is {dual_clip}, expected a bound above 1")
    free = ratio if delta is None else xp.clip(ratio, None, delta)
    worst = -xp.minimum(free * advantage, xp.clip(ratio, 1 - low, 1 + high) * advantage)
    if dual_clip is None:
        return worst
    return xp.where(advantage < 0, xp.minimum(worst, -dual_clip * advantage), worst)


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
    xp = library(ratio, advantage)
    kept = xp.where(ratio > 1 + high, (1 + high) * ratio / detach(ratio), xp.clip(ratio, 1 - low, None))
    return xp.maximum(-ratio * advantage, -kept * advantage)


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
    return -library(ratio).clip(detach(ratio), 1 - low, 1 + high) * advantage * logp


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
    xp = library(ratio, advantage)
    tau = xp.where(advantage > 0, xp.ones_like(ratio) * tau_positive, xp.ones_like(ratio) * tau_negative)
    tau = detach(tau)
    gate = 4.0 / tau / (1.0 + xp.exp(-xp.clip(tau * (ratio - 1.0), -60.0, 60.0)))
    return -gate * advantage


def reinforce_rows(logp: Array, advantage: Array) -> Array:
    """-A·logp.

    Args:
        logp: (...) current log-probability, with gradient.
        advantage: (...) advantages.

    Source: Williams 1992.
    """
    return -advantage * logp


def gmpo_rows(
    log_ratios: Array,
    advantage: Array,
    *,
    clip: Clip = 0.4,
    episode: Array = None,
    mask: Array = None,
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
    log_ratios = as_array(log_ratios)
    advantage = as_array(advantage, log_ratios)
    xp = library(log_ratios)
    clipped = xp.clip(log_ratios, -low, high)
    toward = xp.where(advantage >= 0, xp.minimum(log_ratios, clipped), xp.maximum(log_ratios, clipped))
    geometric = xp.exp(unit_log_ratio(toward, "sequence_geo", episode=episode, mask=mask))
    return -advantage * geometric


_ROW_LOSSES = ("ppo", "gspo", "gmpo", "cispo", "sapo", "aepo", "reinforce")
_SEQUENCE_LOSSES = ("gspo", "gmpo")
"""One loss per sequence; a mean over rows would count a long sequence more often than a short one."""
_DEFAULT_CLIP: dict[str, Clip] = {"gspo": (3e-4, 4e-4), "gmpo": 0.4, "cispo": (1.0, 4.0)}


def policy_loss(
    logp: Array,
    old_logp: Array,
    advantage: Array,
    *,
    mask: Array = None,
    clip: Clip | None = None,
    kind: str = "ppo",
    dual_clip: float | None = None,
    delta: float | None = None,
    ratio_unit: str | None = None,
    turn: Array = None,
    episode: Array = None,
    group: Array = None,
    weight: Array = None,
    aggregation: str | None = None,
    max_length: int | None = None,
    row_weights: Array = None,
) -> Array:
    """Policy loss of a batch, as one number with gradient in `logp`.

    Args:
        logp: (N,) or (B, T) current log-probability of the action of each row; chunks sampled jointly are one turn of
            several rows or one row with the summed log-probability.
        old_logp: like `logp`, of the policy at the start of the update.
        advantage: like `logp`; used without gradient.
        mask: rows of the loss, default all. Masked rows may hold NaN and get an exactly zero gradient.
        clip: width, or (low, high); default 0.2, or the value of the method ("gspo" (3e-4, 4e-4), "gmpo" 0.4 in log
            space, "cispo" (1, 4)).
        kind: "ppo", "gspo" (ppo on the geometric sequence ratio), "gmpo", "cispo", "sapo", "aepo", "reinforce".
        dual_clip: see `ppo_rows`.
        delta: see `ppo_rows`.
        ratio_unit: "step", "turn", "turn_geo", "sequence", "sequence_geo"; default "step", for gspo "sequence_geo".
        turn: per-row turn ids, -1 = none.
        episode: per-row episode ids; default: each line of (B, T).
        group: per-row or per-line group ids, for the "group_balanced" aggregation.
        weight: factor per row, without gradient: importance weights, duration weights. The denominator is unchanged.
        aggregation: mode of `aggregate.row_weight`; default "token_mean", for gspo and gmpo "seq_mean_token_mean", the
            mean over sequences by which they are defined.
        max_length: constant of the "const" aggregation.
        row_weights: weights from `row_weight` over the whole optimiser batch, when this call sees a part of it;
            `aggregation` is then not used.

    Returns:
        0-d loss.

    Raises:
        ValueError: unknown option, wrong shapes, or missing ids.

    Source: PPO, dual clip, GSPO, GMPO, CISPO, SAPO, AEPO: see the row functions.
    """
    logp = floating(as_array(logp))
    rows = policy_loss_rows(
        logp,
        old_logp,
        advantage,
        mask=mask,
        clip=clip,
        kind=kind,
        dual_clip=dual_clip,
        delta=delta,
        ratio_unit=ratio_unit,
        turn=turn,
        episode=episode,
    )
    use = loss_mask(mask, logp)
    if weight is not None:
        factor = detach(as_array(weight, logp))
        rows = rows * cast(factor if use is None else library(logp).where(use, factor, 0.0), logp)
    if row_weights is not None:
        return weighted_sum(rows, row_weights)
    if aggregation is None:
        aggregation = "seq_mean_token_mean" if kind in _SEQUENCE_LOSSES else "token_mean"
    if aggregation == "token_mean":
        return mean_rows(rows, use)
    used = row_mask(None, logp).reshape(logp.shape) if use is None else use
    return weighted_sum(
        rows, row_weight(used, aggregation, episode=episode, turn=turn, group=group, max_length=max_length)
    )


def policy_loss_rows(
    logp: Array,
    old_logp: Array,
    advantage: Array,
    *,
    mask: Array = None,
    clip: Clip | None = None,
    kind: str = "ppo",
    dual_clip: float | None = None,
    delta: float | None = None,
    ratio_unit: str | None = None,
    turn: Array = None,
    episode: Array = None,
) -> Array:
    """The loss of each row before aggregation, 0 where masked; arguments as in `policy_loss`.

    Returns:
        Array like `logp`.

    Raises:
        ValueError: as `policy_loss`, or an option that the kind does not have.
    """
    require_option("kind", kind, _ROW_LOSSES)
    logp = floating(as_array(logp))
    xp = library(logp)
    advantage, old_logp = detach(as_array(advantage, logp)), detach(as_array(old_logp, logp))
    if tuple(advantage.shape) != tuple(logp.shape):
        raise ValueError(f"advantage has shape {tuple(advantage.shape)}, expected that of logp, {tuple(logp.shape)}")
    if kind != "ppo" and kind != "gspo" and (dual_clip is not None or delta is not None):
        raise ValueError(f"dual_clip and delta belong to 'ppo' and 'gspo', got kind {kind!r}; leave them out")
    if kind in _SEQUENCE_LOSSES and ratio_unit not in (None, "sequence_geo"):
        raise ValueError(f"ratio_unit is {ratio_unit!r}, but {kind!r} is defined on 'sequence_geo'; use kind='ppo'")
    use = loss_mask(mask, logp)
    step = log_ratio(logp, old_logp, mask=use)
    if (
        use is not None
    ):  # an advantage of 0 makes a row loss of 0 with a gradient of 0, once the other factors are finite
        advantage = xp.where(use, advantage, 0.0)
    advantage = cast(advantage, logp)
    clip = _DEFAULT_CLIP.get(kind, 0.2) if clip is None else clip
    if kind == "gmpo":
        rows = gmpo_rows(step, advantage, clip=clip, episode=episode, mask=use)
        return rows if use is None else xp.where(use, rows, 0.0)
    unit = ("sequence_geo" if kind == "gspo" else "step") if ratio_unit is None else ratio_unit
    if unit != "step":
        step = unit_log_ratio(step, unit, turn=turn, episode=episode, mask=use)
        advantage = unit_advantage(advantage, unit, turn=turn, episode=episode, mask=use)[0]
    ratio = xp.exp(step)
    row_losses: dict[str, Callable[[], Array]] = {
        "ppo": lambda: ppo_rows(ratio, advantage, clip=clip, dual_clip=dual_clip, delta=delta),
        "gspo": lambda: ppo_rows(ratio, advantage, clip=clip, dual_clip=dual_clip, delta=delta),
        "cispo": lambda: cispo_rows(clean(), ratio, advantage, clip=clip),
        "sapo": lambda: sapo_rows(ratio, advantage),
        "aepo": lambda: aepo_rows(ratio, advantage, clip=clip),
        "reinforce": lambda: reinforce_rows(clean(), advantage),
    }

    def clean() -> Array:
        return logp if use is None else xp.where(use, logp, 0.0)

    rows = row_losses[kind]()
    # A unit hands its advantage to the masked rows inside it too.
    return rows if use is None or unit == "step" else xp.where(use, rows, 0.0)


def decoupled_policy_loss(
    logp: Array,
    proximal_logp: Array,
    behaviour_logp: Array,
    advantage: Array,
    *,
    mask: Array = None,
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
    logp = floating(as_array(logp))
    proximal = detach(as_array(proximal_logp, logp))
    step = log_ratio(proximal, detach(as_array(behaviour_logp, logp)), mask=mask)
    weight = bounded_weight(library(step).exp(step), w_mode, cap=cap, floor=floor)
    return policy_loss(logp, proximal, advantage, mask=mask, weight=weight, **options)


def policy_metrics(
    logp: Array,
    old_logp: Array,
    advantage: Array,
    *,
    mask: Array = None,
    clip: Clip = 0.2,
    dual_clip: float | None = None,
    ratio_unit: str = "step",
    turn: Array = None,
    episode: Array = None,
) -> dict[str, Array]:
    """What to log about an update; no gradient, no wait for the device.

    Args:
        logp: see `policy_loss`.
        old_logp: see `policy_loss`.
        advantage: see `policy_loss`.
        mask: see `policy_loss`.
        clip: see `policy_loss`.
        dual_clip: see `ppo_rows`.
        ratio_unit: see `policy_loss`.
        turn: see `policy_loss`.
        episode: see `policy_loss`.

    Returns:
        0-d float64 arrays: `ratio_max`, `clip_low_fraction`, `clip_high_fraction`, `clip_dual_fraction` (shares of
        masked rows on the flat side of the bound), `advantage_mean`, `advantage_std`, `advantage_max`, `mask_share`,
        `unequal_units`.

    Raises:
        ValueError: as `policy_loss`.
    """
    low, high = clip_bounds(clip)
    logp, advantage = detach(floating(as_array(logp))), detach(as_array(advantage))
    xp = library(logp)
    use = row_mask(mask, logp).reshape(logp.shape)
    step = log_ratio(logp, detach(as_array(old_logp, logp)), mask=use)
    ratio = double(xp.exp(unit_log_ratio(step, ratio_unit, turn=turn, episode=episode, mask=use)))
    a = xp.where(use, double(advantage), 0.0)
    count = double(use).sum()
    safe = xp.maximum(count, xp.ones_like(count))
    mean = a.sum() / safe
    square = (xp.where(use, a - mean, 0.0) ** 2).sum()
    bound = float("inf") if dual_clip is None else dual_clip
    return {
        "ratio_max": xp.where(use, ratio, 0.0).max(),
        "clip_low_fraction": double(use & (a < 0) & (ratio < 1 - low)).sum() / safe,
        "clip_high_fraction": double(use & (a > 0) & (ratio > 1 + high)).sum() / safe,
        "clip_dual_fraction": double(use & (a < 0) & (ratio > bound)).sum() / safe,
        "advantage_mean": mean,
        "advantage_std": xp.sqrt(square / xp.maximum(count - 1, xp.ones_like(count))),
        "advantage_max": xp.abs(a).max(),
        "mask_share": count / max(int(use.reshape(-1).shape[0]), 1),
        "unequal_units": unit_advantage(advantage, ratio_unit, turn=turn, episode=episode, mask=use)[1],
    }
