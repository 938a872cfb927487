"""Group-relative estimators that no learner uses yet: one score per episode in, one advantage per episode out."""

from __future__ import annotations

from typing import Any

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.groups import dr_grpo, group_advantage, grpo, rloo, scorable
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    require_option,
    require_rows,
)
from robot_rl.advantage.normalise import EDGES, EdgeRules, as_cells, whiten
from robot_rl.advantage.returns import position
from robot_rl.advantage.segments import (
    add,
    seg_argmax,
    seg_count,
    seg_max,
    seg_mean,
    seg_var,
    spread,
    stable_order,
)

M_GRPO_EPS = 1e-4
"""What `m_grpo` adds to the deviation."""


@in_torch
def loop(score: Array, group: Array, **options: object) -> Array:
    """Outcome of LOOP: `rloo`, to be used in PPO with a per-row clip of 0.2 over several epochs.

    Source: Chen et al., Reinforcement Learning for Long-Horizon Interactive LLM Agents.
    """
    return rloo(score, group, **options)


@in_torch
def experimental_flow_grpo(score: Array, group: Array, **options: object) -> Array:
    """Outcome of Flow-GRPO as reconstructed from its abstract: `grpo`, handed to every turn of the episode.

    Source: Li et al., AgentFlow (abstract only; reconstruction).
    """
    return grpo(score, group, **options)


@in_torch
def m_grpo(score: Array, group: Array, **options: object) -> Array:
    """`grpo` with eps 1e-4, for the `traj_turn_token` aggregation.

    Source: WebAgent-R1, released code.
    """
    return group_advantage(score, group, **{"rules": EdgeRules(eps=M_GRPO_EPS), **options})


@in_torch
def opo(score: Array, group: Array, length: Array, **options: Any) -> Array:
    """Score minus the length-weighted mean of its group.

    Args:
        score: (N,) outcomes.
        group: (N,) group ids.
        length: (N,) number of loss rows of each episode.
        **options: of `group_advantage`.

    Source: Hao et al., On-Policy RL with Optimal Reward Baseline.
    """
    return group_advantage(score, group, baseline="weighted", scale="none", weight=length, **options)


@in_torch
def remax(score: Array, group: Array, greedy: Array) -> Array:
    """Score minus that of the greedy rollout of the same group.

    Args:
        score: (N,) outcomes.
        group: (N,) group ids, -1 = in no group.
        greedy: (N,) bool, true for the greedy rollout; it gets 0 and is to be left out of the loss.

    Returns:
        (N,) advantages; 0 in groups without a scorable greedy rollout. Several greedy rollouts are averaged.

    Raises:
        ValueError: wrong shapes.

    Source: Li et al., ReMax.
    """
    greedy = greedy.bool()
    require_rows(score.shape[0], greedy=greedy)
    cells = as_cells(group, score)
    ok = cells.inside & ~torch.isnan(score)
    reference = seg_mean(score, cells.ids, cells.n, mask=greedy & ok)[cells.ids]
    out = score.double() - reference
    return match_dtype(torch.where(ok & ~greedy & ~torch.isnan(out), out, 0.0), score)


@in_torch
def gpg(score: Array, group: Array, *, factor: float = 1.0, alpha: float | None = None, **options: object) -> Array:
    """alpha · (score - group mean) / factor, alpha = episodes / episodes with a non-zero score.

    Args:
        score: (N,) outcomes.
        group: (N,) group ids.
        factor: normaliser f > 0.
        alpha: a given value is used as it is (the release overwrites it); None computes it.
        **options: of `group_advantage`.

    Raises:
        ValueError: factor is not positive.

    Source: Chu et al., GPG: A Simple and Strong Baseline; verl, compute_gpg_outcome_advantage.
    """
    if factor <= 0:
        raise ValueError(f"factor is {factor}, expected a positive normaliser")
    ok = scorable(score)
    nonzero = (ok & (score != 0)).double().sum()
    scale = ok.double().sum() / torch.where(nonzero > 0, nonzero, 1.0) if alpha is None else alpha
    return match_dtype(dr_grpo(score, group, **options).double() * (scale / factor), score)


@in_torch
def pass_k(score: Array, group: Array, *, scale: str = "none", rules: EdgeRules = EDGES) -> Array:
    """Only the best member of a group gets credit: its lead over the second best.

    Args:
        score: (N,) outcomes.
        group: (N,) group ids, -1 = in no group.
        scale: "none" or "std" (divide by the deviation of the group).
        rules: `eps` and `std_floor` of the deviation.

    Returns:
        (N,) advantages; all 0 where the best is shared and in groups with fewer than two scorable members.

    Raises:
        ValueError: unknown scale or wrong shapes.

    Source: Chen et al., Pass@k Training; verl, compute_grpo_passk_outcome_advantage.
    """
    require_option("scale", scale, ["none", "std"])
    cells = as_cells(group, score)
    ok = cells.inside & ~torch.isnan(score)
    count = seg_count(cells.ids, cells.n, mask=ok)
    best_row = seg_argmax(torch.where(ok, score, 0.0), cells.ids, cells.n, mask=ok)
    is_best = ok & (best_row[cells.ids] == torch.arange(int(score.shape[0]), device=score.device))
    known = torch.where(ok, score, 0.0).double()
    top = seg_max(known, cells.ids, cells.n, mask=ok)
    second = seg_max(known, cells.ids, cells.n, mask=ok & ~is_best)
    paired = count >= 2
    lead = torch.where(paired, top, 0.0) - torch.where(paired, second, 0.0)
    if scale == "std":
        std = torch.sqrt(seg_var(score, cells.ids, cells.n, mask=ok))
        lead = lead / (torch.where(std > rules.std_floor, std, rules.std_floor) + rules.eps)
    return match_dtype(torch.where(is_best, lead[cells.ids], 0.0), score)


@in_torch
def spo(win: Array) -> Array:
    """Scores from pairwise preferences: the mean probability to beat another member.

    Args:
        win: (..., n, n) probability that row i is preferred to column j; ties are 0.5 and the diagonal is ignored.

    Returns:
        (..., n) scores in [0, 1], to be handed to any estimator of this file; 0 for n = 1.

    Raises:
        ValueError: the last two dimensions differ.

    Source: Swamy et al., A Minimaximalist Approach to RLHF (self-play preference optimisation), formula recalled.
    """
    n = win.shape[-1]
    if len(win.shape) < 2 or win.shape[-2] != n:
        raise ValueError(f"win has shape {tuple(win.shape)}, expected (..., n, n): one row and column per member")
    row = torch.arange(n, device=win.device)
    other = row[:, None] != row[None, :]
    return match_dtype(torch.where(other, win.double(), 0.0).sum(-1) / max(n - 1, 1), win)


@in_torch
def spo_from_score(score: Array, group: Array) -> Array:
    """`spo` where i beats j when its score is higher: the share of the other members that a row beats, ties half.

    Args:
        score: (N,) outcomes, NaN = unscorable (stays NaN).
        group: (N,) group ids, -1 = in no group.

    Returns:
        (N,) scores in [0, 1]; 0 for single members and rows in no group.

    Raises:
        ValueError: wrong shapes or ids.
    """
    cells = as_cells(group, score)
    ok = cells.inside & ~torch.isnan(score)
    known = torch.where(ok, score, 0.0).double()
    # Rank inside the group: sort by score, then stably by group; equal scores share the middle of their ranks.
    at = torch.where(ok, cells.ids, cells.n)
    by_score = torch.argsort(known)
    order = by_score[stable_order(at[by_score])]
    ids, value = at[order], known[order]
    same = ids == ids
    same[1:] = (ids[1:] == ids[:-1]) & (value[1:] == value[:-1])
    same[:1] = False
    tie = torch.cumsum((~same).long(), 0) - 1
    before = position(tie)
    row = torch.arange(int(score.shape[0]), device=score.device)
    first_of_group = torch.cumsum(add(None, at, cells.n + 1), 0) - add(None, at, cells.n + 1)
    ties = add(None, tie, int(score.shape[0]))[tie]
    members = seg_count(cells.ids, cells.n, mask=ok)
    out = torch.zeros_like(known)
    out[order] = (row - before).double() - first_of_group[ids] + 0.5 * (ties - 1.0)
    share = out / torch.where(members > 1, members - 1.0, 1.0)[cells.ids]
    share = torch.where(torch.isnan(score), float("nan"), torch.where(ok, share, 0.0))
    return match_dtype(share, score)


@in_torch
def reinforce_pp_baseline(score: Array, group: Array, episode: Array, mask: Array, *, eps: float = 1e-8) -> Array:
    """Score minus group mean on every row, whitened over the masked rows of the batch.

    Args:
        score: (E,) outcomes.
        group: (E,) group ids, -1 = in no group (advantage 0).
        episode: (N,) episode of each row.
        mask: (N,) rows of the loss.
        eps: added to the deviation.

    Returns:
        (N,) advantages.

    Raises:
        ValueError: wrong shapes or ids.

    Source: Hu et al., REINFORCE++ (variant with a group baseline).
    """
    use = mask.bool() & scorable(score, episode) & (group >= 0)[episode.long()]
    return whiten(spread(dr_grpo(score, group), episode.long(), mask=use), use, eps=eps)
