"""Advantages of whole episodes from the scores of their group: GRPO, RLOO and their relatives.

Every function takes one score per episode and a group id per episode and returns one advantage per episode; `spread`
hands it to the rows of the loss. A group holds rollouts from the same initial state or task seed. NaN scores leave the
statistics and get 0 (`scorable` gives the mask); single-member groups and groups without spread get 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    require_option,
)
from robot_rl.advantage.normalise import EDGES, EdgeRules, as_cells, normalise
from robot_rl.advantage.segments import (
    seg_count,
    seg_mean,
    seg_var,
)

_BASELINES = ("mean", "leave_one_out", "weighted", "none")


@in_torch
def group_advantage(
    score: Array,
    group: Array,
    *,
    baseline: str = "mean",
    scale: str = "std",
    weight: Array | None = None,
    mask: Array | None = None,
    rules: EdgeRules = EDGES,
) -> Array:
    """Score against the baseline of its group, divided by a spread.

    Args:
        score: (N,) one outcome per episode; NaN = unscorable.
        group: (N,) integer group ids, any values >= 0; -1 = in no group (advantage 0).
        baseline: "mean", "leave_one_out", "weighted" (mean with `weight`), "none".
        scale: "std" of the group, "batch_std" of the raw scores of the batch, "rms" of the group, "none".
        weight: (N,) weights of the "weighted" baseline, for instance episode lengths.
        mask: (N,) episodes that count, default all; the others get 0.
        rules: for small groups and groups without spread.

    Returns:
        (N,) advantages in the dtype of `score`; 0 for single members and groups without spread, never NaN by default.

    Raises:
        ValueError: unknown option, wrong shape, or leave_one_out with the std of the same group.

    Source: GRPO, Shao et al., DeepSeekMath; RLOO, Ahmadian et al., Back to Basics.
    """
    require_option("baseline", baseline, _BASELINES)
    require_option("scale", scale, ["std", "batch_std", "rms", "none"])
    return normalise(
        score,
        group,
        center=baseline,
        scale="std" if scale == "batch_std" else scale,
        scale_cells="batch" if scale == "batch_std" else None,
        weight=weight,
        mask=mask,
        rules=rules,
    )[0]


@in_torch
def scorable(score: Array, episode: Array | None = None) -> Array:
    """Rows whose episode has a score.

    Args:
        score: (E,) outcomes, NaN = unscorable.
        episode: (N,) episode of each row, or None for one row per episode.

    Returns:
        (N,) bool, to be combined with the loss mask.
    """
    ok = ~torch.isnan(score)
    return ok if episode is None else ok[episode.long()]


@in_torch
def group_metrics(score: Array, group: Array) -> dict[str, Array]:
    """What to log about the groups of a batch.

    Args:
        score: (N,) outcomes, NaN = unscorable.
        group: (N,) group ids, -1 = in no group.

    Returns:
        0-d arrays: `groups`, `singleton_fraction`, `zero_variance_fraction` (of groups with at least two scorable
        members), `unscorable_fraction`.

    Raises:
        ValueError: wrong shape or ids.
    """
    cells = as_cells(group, score)
    ok = ~torch.isnan(score) & cells.inside
    members = seg_count(cells.ids, cells.n, mask=cells.inside)
    count = seg_count(cells.ids, cells.n, mask=ok)
    var = seg_var(score, cells.ids, cells.n, mask=ok)
    groups = (members > 0).double().sum()
    several = (count > 1).double().sum()
    one = torch.ones_like(groups)
    flat = (torch.where(count > 1, var, 1.0) <= 1e-12).double().sum()
    return {
        "groups": groups,
        "singleton_fraction": ((members > 0) & (count < 2)).double().sum() / torch.maximum(groups, one),
        "zero_variance_fraction": flat / torch.maximum(several, one),
        "unscorable_fraction": 1.0 - ok.double().sum() / max(int(score.shape[0]), 1),
    }


@in_torch
def actor_means(advantage: Array, actor: Array, n_actors: int, *, mask: Array | None = None) -> Array:
    """Mean advantage per actor, for the log.

    Args:
        advantage: (U,) advantages.
        actor: (U,) dense actor ids.
        n_actors: number of actors.
        mask: (U,) rows to use, default all.

    Returns:
        (n_actors,) float64; NaN for an absent actor.
    """
    return seg_mean(advantage, actor, n_actors, mask=mask)


@in_torch
def grpo(score: Array, group: Array, **options: Any) -> Array:
    """(score - group mean) / group std; arguments as in `group_advantage`.

    Source: Shao et al., DeepSeekMath, section 4.1.1.
    """
    return group_advantage(score, group, **options)


@in_torch
def dr_grpo(score: Array, group: Array, **options: Any) -> Array:
    """Score minus group mean, without a scale; use it with `const` aggregation. Options of `group_advantage`.

    Source: Liu et al., Understanding R1-Zero-Like Training.
    """
    return group_advantage(score, group, scale="none", **options)


@in_torch
def rloo(score: Array, group: Array, **options: Any) -> Array:
    """Score minus the mean of the other members; unbiased. Options of `group_advantage`.

    Source: Ahmadian et al., Back to Basics: Revisiting REINFORCE-Style Optimization.
    """
    return group_advantage(score, group, baseline="leave_one_out", scale="none", **options)


@in_torch
def lite_ppo(score: Array, group: Array, *, scale_of: str = "raw", **options: Any) -> Array:
    """Score minus group mean, divided by the deviation of the batch.

    Args:
        score: (N,) outcomes.
        group: (N,) group ids.
        scale_of: deviation of the "raw" scores of the batch, or of the "centered" ones.
        **options: of `group_advantage`.

    Raises:
        ValueError: unknown `scale_of`.

    Source: Liu et al., Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning (Lite PPO).
    """
    require_option("scale_of", scale_of, ["raw", "centered"])
    if scale_of == "raw":
        return group_advantage(score, group, scale="batch_std", **options)
    centered = dr_grpo(score, group, **options)
    # The batch is one cell: the rules for small groups have been applied by the centring.
    rules = replace(options.get("rules", EDGES), min_count=2, singleton="zero", zero_var="keep")
    nan = torch.isnan(score) | (group < 0)  # of no group: no part of the batch
    known = torch.where(nan, float("nan"), centered)
    return normalise(known, "batch", center="none", mask=options.get("mask"), rules=rules)[0]
