"""Which samples count, and how much: filters and limits of staleness that no learner uses yet."""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    require_option,
)
from robot_rl.advantage.layout import row_mask
from robot_rl.advantage.segments import seg_count
from robot_rl.advantage.weights import _group_std


@in_torch
def duration_weight(duration: Array, *, mask: Array | None = None) -> Array:
    """Duration of the turn over the mean duration of the batch: weighs long decisions by their time.

    Args:
        duration: (...) wall time of the turn on each row, s; or executed ticks.
        mask: (...) rows of the loss, default all; the others get 0.

    Returns:
        (...) weights with mean 1 over the masked rows.

    Raises:
        ValueError: shapes differ.

    Source: duration-aware weighting of machine-learning-engineering agents (notes).
    """
    use = row_mask(mask, duration).reshape(duration.shape)
    known = torch.where(use, duration.double(), 0.0)
    total, count = known.sum(), use.double().sum()
    mean = total / torch.maximum(count, torch.ones_like(count))
    return match_dtype(known / torch.where(mean > 0, mean, torch.ones_like(mean)), duration)


@in_torch
def void_episodes(void: Array, episode: Array, n_episodes: int) -> Array:
    """Episodes with a void turn: one without an executable action and without an answer.

    Args:
        void: (U,) bool; for robots an empty, NaN or safety-rejected chunk.
        episode: (U,) dense episode ids.
        n_episodes: number of episodes.

    Returns:
        (n_episodes,) bool.

    Raises:
        ValueError: wrong shapes or ids.
    """
    void = void.bool()
    return seg_count(episode, n_episodes, mask=void) > 0


@in_torch
def void_filter(
    void: Array, episode: Array, row_episode: Array, score: Array, *, mask: Array | None = None, stats: str = "keep"
) -> tuple[Array, Array]:
    """Clear the loss mask of whole episodes with a void turn.

    Args:
        void: (U,) bool per turn.
        episode: (U,) dense episode of each turn.
        row_episode: (N,) episode of each loss row.
        score: (E,) outcomes.
        mask: (N,) rows of the loss, default all.
        stats: "keep" leaves void episodes in the group statistics (the release); "drop" makes their score NaN.

    Returns:
        ((N,) bool mask that remains; the denominator of the loss is that of the remaining rows, (E,) scores for the
        group statistics).

    Raises:
        ValueError: unknown option, wrong shapes or ids.

    Source: SimpleTIR, void-turn filter.
    """
    require_option("stats", stats, ["keep", "drop"])
    bad = void_episodes(void, episode, int(score.shape[0]))
    row_episode = row_episode.long()
    kept = row_mask(mask, row_episode) & ~bad[row_episode]
    return kept, (match_dtype(torch.where(bad, float("nan"), score.double()), score) if stats == "drop" else score)


@in_torch
def variance_top_fraction(score: Array, group: Array, fraction: float = 0.25) -> Array:
    """Members of the groups with the largest deviation.

    Args:
        score: (E,) outcomes, NaN = unscorable.
        group: (E,) group ids, -1 = none.
        fraction: share of the groups to keep, rounded down, at least one.

    Returns:
        (E,) bool; groups with equal deviation are kept in the order of their ids.

    Raises:
        ValueError: wrong shapes or ids, or a fraction outside (0, 1].

    Source: RAGEN, variance-based trajectory filtering.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction is {fraction}, expected a share of the groups in (0, 1]")
    std, cells, ok = _group_std(score, group)
    present = seg_count(cells, int(std.shape[0]), mask=ok) > 0
    number = present.double().sum()
    keep = torch.floor(number * fraction + 1e-9)
    keep = torch.maximum(keep, torch.ones_like(keep))
    order = torch.argsort(torch.where(present, -std, float("inf")), stable=True)  # stable: ties go to the smaller id
    rank = torch.empty_like(order)
    rank[order] = torch.arange(int(std.shape[0]), device=std.device)
    return ok & (rank.double() < keep)[cells]


@in_torch
def admit(version: Array, current_version: int, max_head_offpolicyness: int = 0) -> Array:
    """Samples that are fresh enough: current version - their version <= the limit.

    Args:
        version: (...) policy version that generated the sample.
        current_version: version that is trained now.
        max_head_offpolicyness: largest age; 0 is synchronous training.

    Returns:
        (...) bool.

    Raises:
        ValueError: the limit is negative.

    Source: AReaL, staleness control.
    """
    _require_limit(max_head_offpolicyness)
    return current_version - version <= max_head_offpolicyness


def may_start_rollout(
    accepted: int, running: int, version: int, batch_size: int, max_head_offpolicyness: int = 0
) -> bool:
    """Whether a new rollout can still be trained on before it is too old.

    Args:
        accepted: rollouts accepted since the start of training.
        running: rollouts under way.
        version: version that is trained now.
        batch_size: rollouts per update.
        max_head_offpolicyness: largest age in versions.

    Returns:
        accepted + running < (version + max_head_offpolicyness + 1) · batch_size.

    Raises:
        ValueError: the limit is negative.

    Source: AReaL, staleness control (recalled).
    """
    _require_limit(max_head_offpolicyness)
    return accepted + running < (version + max_head_offpolicyness + 1) * batch_size


def _require_limit(limit: int) -> None:
    if limit < 0:
        raise ValueError(f"max_head_offpolicyness is {limit}, expected a number of versions >= 0")
