"""Estimators over turns and tokens of a group that no learner uses yet."""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    require_flat,
    require_option,
    require_rows,
)
from robot_rl.advantage.normalise import RESIDUE, EdgeRules, as_cells, normalise, whiten
from robot_rl.advantage.returns import continues, discounted_return, position, unscorable_rows
from robot_rl.advantage.segments import combine_ids, seg_count, seg_sum, seg_var
from robot_rl.advantage.turn_groups import _cell, _episode_rows, _turn_rows


@in_torch
def ui_s1_return(reward: Array, match: Array, episode: Array, *, gamma: float = 0.5) -> Array:
    """Return that stops at patched steps: G_t = r_t + gamma · G_{t+1} only if both steps are the policy's own.

    Args:
        reward: (U,) score of each step.
        match: (U,) bool, false where the policy missed and the expert's action went on.
        episode: (U,) episode of each step, not falling.
        gamma: discount per step.

    Returns:
        (U,) returns.

    Raises:
        ValueError: wrong shapes, ids or gamma.

    Source: Lu et al., UI-S1 semi-online RL; X-PLUG/MobileAgent.
    """
    match = match.bool()
    require_rows(require_flat("reward", reward), match=match)
    following = match & match
    following[:-1] = match[1:]
    return discounted_return(reward, episode, gamma, keep=match & following)


@in_torch
def ui_s1(
    reward: Array,
    match: Array,
    episode: Array,
    group: Array,
    *,
    gamma: float = 0.5,
    omega: float = 1.0,
    episode_on: str = "return",
    keep_std: float = 0.3,
    patch_threshold: int | None = None,
) -> Array:
    """Episode advantage plus omega times the advantage of the step return in the cell (task, step index).

    Args:
        reward: (U,) score of each step.
        match: (U,) bool, false at patched steps.
        episode: (U,) episode of each step, not falling.
        group: (E,) task of each episode, -1 = none.
        gamma: discount per step.
        omega: weight of the step part.
        episode_on: "return": one entry per trajectory, the sum of its scores; "scores": every step score of the task
            is an entry (the release).
        keep_std: a group whose entries of the episode part deviate by this or less gets 0.
        patch_threshold: episodes with more patched steps leave the statistics and get 0; None keeps all.

    Returns:
        (U,) advantages.

    Raises:
        ValueError: wrong shapes, ids, gamma or option.

    Source: Lu et al., UI-S1 semi-online RL; X-PLUG/MobileAgent.
    """
    require_option("episode_on", episode_on, ["return", "scores"])
    reward, episode, row_group, _ = _turn_rows(reward, episode, group)
    match = match.bool()
    episodes = int(group.shape[0])
    value = ui_s1_return(reward, match, episode, gamma=gamma).double()
    bad = torch.isnan(value)
    if patch_threshold is not None:
        bad = bad | (seg_count(episode, episodes, mask=~match) > patch_threshold)[episode]
    value = torch.where(bad, float("nan"), value)
    step_score = torch.where(bad, float("nan"), reward.double())
    if episode_on == "scores":
        entries, at = step_score, row_group
    else:
        entries = seg_sum(step_score, episode, episodes)  # NaN in an episode that is out
        at = group
    tasks = as_cells(at, entries)
    var = seg_var(entries, tasks.ids, tasks.n, mask=tasks.inside & ~torch.isnan(entries))[tasks.ids]
    outer = torch.where(
        torch.sqrt(torch.where(torch.isnan(var), 0.0, var)) > keep_std, normalise(entries, at)[0], float("nan")
    )
    outer = outer if episode_on == "scores" else outer[episode]
    cells, count = _cell(row_group, position(episode))
    inner = normalise(value, as_cells(cells, value, count))[0]
    return match_dtype(torch.where(torch.isnan(outer) | bad, 0.0, outer + omega * inner), reward)


@in_torch
def cm2_turn(
    reward: Array,
    episode: Array,
    group: Array,
    *,
    scale: str = "none",
    min_members: int = 5,
    turn_index: Array | None = None,
) -> Array:
    """Checklist score of a turn against the same turn of the same task.

    Args:
        reward: (U,) checklist score of each turn; NaN = tool or judge failed, which excludes the whole rollout.
        episode: (U,) episode of each turn, not falling.
        group: (E,) task of each episode, -1 = none.
        scale: "none" or "std".
        min_members: smaller cells give 0.
        turn_index: (U,) default 0, 1, ... inside each episode.

    Returns:
        (U,) advantages.

    Raises:
        ValueError: wrong shapes, ids or option.

    Source: CM2, checklist rewards for multi-turn agents (released structure).
    """
    require_option("scale", scale, ["none", "std"])
    reward, episode, row_group, _ = _turn_rows(reward, episode, group)
    known = torch.where(unscorable_rows(reward, episode), float("nan"), reward.double())
    index = position(episode) if turn_index is None else turn_index
    cells, count = _cell(row_group, index)
    return match_dtype(
        normalise(known, as_cells(cells, known, count), scale=scale, rules=EdgeRules(min_count=min_members))[0], reward
    )


@in_torch
def reinforce_pp(
    reward: Array, episode: Array, *, gamma: float = 1.0, mask: Array | None = None, eps: float = 1e-8
) -> Array:
    """Discounted return-to-go of every row, whitened over the masked rows of the batch.

    Args:
        reward: (N,) reward of each clock row; rewards of masked rows count in the returns.
        episode: (N,) episode of each row, not falling.
        gamma: discount per row.
        mask: (N,) rows of the loss, default all.
        eps: added to the deviation.

    Returns:
        (N,) advantages, 0 at masked rows.

    Raises:
        ValueError: wrong shapes, ids or gamma.

    Source: Hu et al., REINFORCE++.
    """
    value = discounted_return(reward, episode, gamma)
    use = ~torch.isnan(value)
    if mask is not None:
        use = use & mask.bool()
    return whiten(value, use, eps=eps)


@in_torch
def otb_weight(prob: Array, prob_square_sum: Array, episode: Array, *, turn: Array | None = None) -> Array:
    """Accumulated squared score-function norm that weighs the optimal baseline: sum of 1 - 2·pi + sum_a pi(a)^2.

    Args:
        prob: (N,) probability of the action taken.
        prob_square_sum: (N,) sum of the squared probabilities of all actions.
        episode: (N,) episode of each row, not falling.
        turn: (N,) turn of each row; if given, the sum restarts at every turn (tool-aware variant).

    Returns:
        (N,) running sums >= 0.

    Raises:
        ValueError: wrong shapes or ids.

    Source: optimal token baseline as present in verl (formula recalled).
    """
    square = prob_square_sum
    ids = episode if turn is None else combine_ids(episode, turn)[0]
    norm = 1.0 - 2.0 * prob.double() + square.double()
    total = torch.cumsum(norm, 0)
    first = ~torch.flip(continues(torch.flip(ids, (0,))), (0,))
    block = torch.cumsum(first.long(), 0) - 1
    return match_dtype(total - (total - norm)[first][block], prob)


@in_torch
def otb(value: Array, weight: Array, episode: Array, group: Array, *, row_position: Array | None = None) -> Array:
    """Return minus the variance-optimal baseline of the same position in the group.

    Args:
        value: (N,) return of each row.
        weight: (N,) weights from `otb_weight`.
        episode: (N,) episode of each row, not falling.
        group: (E,) group of each episode, -1 = none.
        row_position: (N,) default 0, 1, ... inside each episode.

    Returns:
        (N,) advantages; 0 where a position has a single member.

    Raises:
        ValueError: wrong shapes or ids.

    Source: optimal token baseline as present in verl (formula recalled).
    """
    value, episode, group = _episode_rows(value, episode, group)
    weight = weight.double()
    require_rows(int(value.shape[0]), weight=weight)
    x = value.double()
    index = position(episode) if row_position is None else row_position
    cells, count = _cell(group[episode], index)
    use = (cells >= 0) & ~torch.isnan(x)
    cells = torch.where(cells >= 0, cells, 0)
    x, weight = torch.where(use, x, 0.0), torch.where(use, weight, 0.0)
    total = seg_sum(weight, cells, count)
    baseline = seg_sum(weight * x, cells, count) / torch.where(total > 0, total, 1.0)
    # NaN marks cells with a single member: nothing is larger than NaN, so that their rows become 0 below.
    baseline = torch.where(seg_count(cells, count, mask=use) < 2, float("nan"), baseline)
    out = x - baseline[cells]
    # What is equal to its baseline up to float residue is equal: cells without spread give exactly 0.
    apart = torch.abs(out) > RESIDUE * torch.clip(torch.abs(x), 1.0, None)
    return match_dtype(torch.where(apart & use, out, 0.0), value)
