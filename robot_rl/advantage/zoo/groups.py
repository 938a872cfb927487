"""Group-relative estimators that no learner uses yet: one score per episode in, one advantage per episode out."""

from __future__ import annotations

from typing import Any

from robot_rl.advantage.groups import dr_grpo, group_advantage, grpo, rloo, scorable
from robot_rl.advantage.kinds import (
    Array,
    arange,
    as_array,
    boolean,
    double,
    integer,
    library,
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


def loop(score: Array, group: Array, **options: object) -> Array:
    """Outcome of LOOP: `rloo`, to be used in PPO with a per-row clip of 0.2 over several epochs.

    Source: Chen et al., Reinforcement Learning for Long-Horizon Interactive LLM Agents.
    """
    return rloo(score, group, **options)


def experimental_flow_grpo(score: Array, group: Array, **options: object) -> Array:
    """Outcome of Flow-GRPO as reconstructed from its abstract: `grpo`, handed to every turn of the episode.

    Source: Li et al., AgentFlow (abstract only; reconstruction).
    """
    return grpo(score, group, **options)


def m_grpo(score: Array, group: Array, **options: object) -> Array:
    """`grpo` with eps 1e-4, for the `traj_turn_token` aggregation.

    Source: WebAgent-R1, released code.
    """
    return group_advantage(score, group, **{"rules": EdgeRules(eps=1e-4), **options})


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
    score = as_array(score)
    xp = library(score)
    greedy = boolean(as_array(greedy, score))
    require_rows(score.shape[0], greedy=greedy)
    cells = as_cells(group, score)
    ok = cells.inside & ~xp.isnan(score)
    reference = seg_mean(score, cells.ids, cells.n, mask=greedy & ok)[cells.ids]
    out = double(score) - reference
    return match_dtype(xp.where(ok & ~greedy & ~xp.isnan(out), out, 0.0), score)


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
    score = as_array(score)
    xp = library(score)
    ok = scorable(score)
    nonzero = double(ok & (score != 0)).sum()
    scale = double(ok).sum() / xp.where(nonzero > 0, nonzero, 1.0) if alpha is None else alpha
    return match_dtype(double(dr_grpo(score, group, **options)) * (scale / factor), score)


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
    score = as_array(score)
    xp = library(score)
    cells = as_cells(group, score)
    ok = cells.inside & ~xp.isnan(score)
    count = seg_count(cells.ids, cells.n, mask=ok)
    best_row = seg_argmax(xp.where(ok, score, 0.0), cells.ids, cells.n, mask=ok)
    is_best = ok & (best_row[cells.ids] == arange(int(score.shape[0]), score))
    known = double(xp.where(ok, score, 0.0))
    top = seg_max(known, cells.ids, cells.n, mask=ok)
    second = seg_max(known, cells.ids, cells.n, mask=ok & ~is_best)
    paired = count >= 2
    lead = xp.where(paired, top, 0.0) - xp.where(paired, second, 0.0)
    if scale == "std":
        std = xp.sqrt(seg_var(score, cells.ids, cells.n, mask=ok))
        lead = lead / (xp.where(std > rules.std_floor, std, rules.std_floor) + rules.eps)
    return match_dtype(xp.where(is_best, lead[cells.ids], 0.0), score)


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
    win = as_array(win)
    xp = library(win)
    n = win.shape[-1]
    if len(win.shape) < 2 or win.shape[-2] != n:
        raise ValueError(f"win has shape {tuple(win.shape)}, expected (..., n, n): one row and column per member")
    row = arange(n, win)
    other = row[:, None] != row[None, :]
    return match_dtype(xp.where(other, double(win), 0.0).sum(-1) / max(n - 1, 1), win)


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
    score = as_array(score)
    xp = library(score)
    cells = as_cells(group, score)
    ok = cells.inside & ~xp.isnan(score)
    known = double(xp.where(ok, score, 0.0))
    # Rank inside the group: sort by score, then stably by group; equal scores share the middle of their ranks.
    at = xp.where(ok, cells.ids, cells.n)
    by_score = xp.argsort(known)
    order = by_score[stable_order(at[by_score])]
    ids, value = at[order], known[order]
    same = ids == ids
    same[1:] = (ids[1:] == ids[:-1]) & (value[1:] == value[:-1])
    same[:1] = False
    tie = xp.cumsum(integer(~same), 0) - 1
    before = position(tie)
    row = arange(int(score.shape[0]), score)
    first_of_group = xp.cumsum(add(None, at, cells.n + 1), 0) - add(None, at, cells.n + 1)
    ties = add(None, tie, int(score.shape[0]))[tie]
    members = seg_count(cells.ids, cells.n, mask=ok)
    out = xp.zeros_like(known)
    out[order] = double(row - before) - first_of_group[ids] + 0.5 * (ties - 1.0)
    share = out / xp.where(members > 1, members - 1.0, 1.0)[cells.ids]
    share = xp.where(xp.isnan(score), float("nan"), xp.where(ok, share, 0.0))
    return match_dtype(share, score)


def reinforce_pp_baseline(score: Array, group: Array, episode: Array, mask: Array, *, eps: float = 1e-8) -> Array:
    """Score minus group mean on every row, whitened over the masked rows of the batch.

    Args:
        score: (E,) outcomes.
        group: (E,) group ids.
        episode: (N,) episode of each row.
        mask: (N,) rows of the loss.
        eps: added to the deviation.

    Returns:
        (N,) advantages.

    Raises:
        ValueError: wrong shapes or ids.

    Source: Hu et al., REINFORCE++ (variant with a group baseline).
    """
    score = as_array(score)
    use = boolean(as_array(mask, score)) & scorable(score, episode)
    return whiten(spread(dr_grpo(score, group), integer(as_array(episode, score)), mask=use), use, eps=eps)
