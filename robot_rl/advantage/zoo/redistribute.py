"""Turn rewards from learned progress (SPA), answer probability (IGPO) and the effect of an observation (InfoPO)."""

from __future__ import annotations

import math

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    require_flat,
    require_rows,
)
from robot_rl.advantage.normalise import EdgeRules, as_cells, normalise
from robot_rl.advantage.returns import continues, discounted_return, position, unscorable_rows
from robot_rl.advantage.segments import combine_ids, seg_count, seg_mean, seg_sum, seg_var


@in_torch
def spa_loss(contribution: Array, episode: Array, outcome: Array) -> Array:
    """Squared error that trains a progress model: the contributions of an episode sum to its outcome.

    Args:
        contribution: (U,) predicted contribution of each turn.
        episode: (U,) dense episode ids.
        outcome: (E,) outcomes.

    Returns:
        (E,) squared errors, differentiable in `contribution`.

    Raises:
        ValueError: wrong shapes or ids.

    Source: Wang et al., SPA-RL; WangHanLinHenry/SPA-RL-Agent.
    """
    total = seg_sum(contribution, episode, int(outcome.shape[0]))
    return match_dtype((total - outcome.double()) ** 2, contribution)


@in_torch
def spa_reward(
    contribution: Array,
    episode: Array,
    *,
    grounding: Array | None = None,
    outcome: Array | None = None,
    alpha: float = 1.0,
    beta: float = 0.5,
    enforce_sum: bool = False,
) -> Array:
    """Turn reward alpha · contribution + beta · grounding.

    Args:
        contribution: (U,) predicted contribution of each turn.
        episode: (U,) dense episode ids.
        grounding: (U,) 1 where the action could be executed, else 0. Default: no grounding term.
        outcome: (E,) outcomes, needed by `enforce_sum`.
        alpha: factor of the contribution.
        beta: factor of the grounding.
        enforce_sum: first shift the contributions of an episode equally so that they sum to its outcome.

    Returns:
        (U,) rewards.

    Raises:
        ValueError: wrong shapes or ids, or enforce_sum without outcome.

    Source: Wang et al., SPA-RL; WangHanLinHenry/SPA-RL-Agent.
    """
    value = contribution.double()
    if enforce_sum:
        if outcome is None:
            raise ValueError("enforce_sum needs the outcome of each episode, got None")
        total = outcome.double()
        count = int(total.shape[0])
        gap = total - seg_sum(value, episode, count)
        turns = seg_count(episode, count)
        value = value + (gap / torch.where(turns > 0, turns, 1.0))[episode.long()]
    out = alpha * value
    if grounding is not None:
        require_rows(require_flat("contribution", contribution), grounding=grounding)
        out = out + beta * grounding.double()
    return match_dtype(out, contribution)


@in_torch
def spa_release_weight(episode: Array) -> Array:
    """Weight of a turn in the released policy update: the number of later turns, 0 for the last; for comparison only.

    Args:
        episode: (U,) dense episode ids, rows sorted by (episode, time).

    Returns:
        (U,) float64.

    Source: WangHanLinHenry/SPA-RL-Agent (the paper describes the dense reward of `spa_reward`).
    """
    ids, count = combine_ids(episode, episode)
    return seg_count(ids, count)[ids] - 1.0 - position(episode).double()


@in_torch
def answer_probability(logp: Array, context: Array, n_contexts: int, *, mask: Array | None = None) -> Array:
    """exp of the mean log-probability of the reference answer's tokens, per context.

    Args:
        logp: (N,) log-probability of each answer token under the behaviour policy, without gradient.
        context: (N,) dense id of the context (one per turn) in which the answer was scored.
        n_contexts: number of contexts.
        mask: (N,) tokens to use, default all.

    Returns:
        (n_contexts,) float64 in (0, 1]; NaN without tokens.

    Source: IGPO; GuoqingWang1/IGPO.
    """
    return torch.exp(seg_mean(logp, context, n_contexts, mask=mask))


@in_torch
def igpo_reward(prob: Array, episode: Array, outcome: Array) -> Array:
    """Gain in answer probability by each turn; the last turn of an episode has the outcome only.

    Args:
        prob: (U,) probability of the reference answer given the context BEFORE each turn; the first entry of an
            episode is the prior.
        episode: (U,) dense episode ids, not falling.
        outcome: (E,) outcomes, for instance F1; NaN = unscorable.

    Returns:
        (U,) rewards.

    Raises:
        ValueError: wrong shapes.

    Source: IGPO; GuoqingWang1/IGPO.
    """
    episode = episode.long()
    require_rows(require_flat("prob", prob), episode=episode)
    outcome = outcome.double()
    after = prob.double() * 1.0
    after[:-1] = prob.double()[1:]
    return match_dtype(torch.where(continues(episode), after - prob.double(), outcome[episode]), prob)


@in_torch
def igpo(reward: Array, episode: Array, group: Array, *, gamma: float = 1.0, release_norm: bool = False) -> Array:
    """Turn rewards of a group, outcomes included, normalised together and summed with a discount.

    Args:
        reward: (U,) rewards from `igpo_reward`.
        episode: (U,) dense episode ids, not falling.
        group: (E,) group of each episode, -1 = none.
        gamma: discount per turn.
        release_norm: only subtract the mean of the same turn position in the group, gamma = 1.

    Returns:
        (U,) advantages; 0 in unscorable episodes.

    Raises:
        ValueError: wrong shapes or ids, or gamma given with release_norm.

    Source: IGPO (pooled z-score recalled); GuoqingWang1/IGPO for the release.
    """
    if release_norm and gamma != 1.0:
        raise ValueError(
            f"gamma is {gamma} with release_norm, which has no discount; set gamma=1 or release_norm=False"
        )
    episode = episode.long()
    row_group = group[episode]
    bad = unscorable_rows(reward, episode) | (row_group < 0)
    known = torch.where(bad, float("nan"), reward.double())
    if release_norm:
        cells, count = combine_ids(row_group, position(episode))
        z = normalise(known, as_cells(cells, known, count), scale="none")[0]
    else:
        z = normalise(known, row_group)[0]
    return match_dtype(torch.where(bad, 0.0, discounted_return(z, episode, gamma)), reward)


@in_torch
def infopo_gain(logp_with: Array, logp_without: Array, turn: Array, episode: Array) -> Array:
    """How much the observation after each turn changed the log-probability of the next action.

    Args:
        logp_with: (N,) log-probability of each action row given the true observation.
        logp_without: (N,) the same with the observation replaced by a neutral one of equal length; robots hold the
            last reading.
        turn: (N,) dense turn of each action row.
        episode: (U,) episode of each turn, not falling.

    Returns:
        (U,) mean difference over the rows of the NEXT turn, credited to the turn that caused the observation; 0 for
        the last turn of an episode and where the next turn has no action rows.

    Raises:
        ValueError: wrong shapes or ids.

    Source: InfoPO; kfq20/InfoPO.
    """
    n_turns = require_flat("episode", episode)
    gap = logp_with.double() - logp_without.double()
    own = seg_mean(gap, turn, n_turns)
    after = own * 1.0
    after[:-1] = own[1:]
    return match_dtype(torch.where(continues(episode) & ~torch.isnan(after), after, 0.0), logp_with)


def infopo_beta(epoch: float, *, beta: float = 0.1, decay: float = 0.0) -> float:
    """Weight of the intrinsic part, beta · exp(-decay · epoch).

    Args:
        epoch: epochs done.
        beta: weight at the start.
        decay: rate per epoch.
    """
    return beta * math.exp(-decay * epoch)


@in_torch
def infopo(
    gain: Array,
    length: Array,
    episode: Array,
    group: Array,
    score: Array,
    *,
    beta: float = 0.1,
    gate_width: float = 0.05,
    eps: float = 1e-6,
) -> Array:
    """Outcome advantage plus a gated intrinsic part that opens where the outcomes of a group do not discriminate.

    Args:
        gain: (U,) from `infopo_gain`.
        length: (U,) number of action rows of each turn; the gain is divided by it and counted once per row.
        episode: (U,) dense episode ids, not falling.
        group: (E,) group of each episode, -1 = none.
        score: (E,) outcomes, NaN = unscorable.
        beta: weight of the intrinsic part, see `infopo_beta`.
        gate_width: the gate is sigmoid(-group deviation / gate_width), 0.5 without spread.
        eps: added to the denominators.

    Returns:
        (U,) advantage of each turn, the same for all its rows.

    Raises:
        ValueError: wrong shapes or ids.

    Source: InfoPO; kfq20/InfoPO.
    """
    episode, length = episode.long(), length.double()
    score = score.double()
    require_rows(require_flat("gain", gain), length=length, episode=episode)
    cells = as_cells(group, score)
    ok = cells.inside & ~torch.isnan(score)
    std = torch.sqrt(_require_known(seg_var(score, cells.ids, cells.n, mask=ok)))
    outer = normalise(score, group, rules=EdgeRules(eps=eps))[0]

    row_cell, row_ok = cells.ids[episode], ok[episode]
    per_row = gain.double() / torch.where(length > 0, length, 1.0)
    use = row_ok & (per_row != 0) & (length > 0)
    count = seg_count(row_cell, cells.n, weight=length, mask=use)
    mean = _require_known(seg_mean(per_row, row_cell, cells.n, weight=length, mask=use))
    inner_std = torch.sqrt(_require_known(seg_var(per_row, row_cell, cells.n, weight=length, mask=use)))
    # One value has no deviation: it is centred only, and so becomes 0.
    divisor = torch.where(count > 1, inner_std + eps, 1.0)
    z = torch.where(use, (per_row - mean[row_cell]) / divisor[row_cell], 0.0)
    at_least_one = torch.where(std > 1.0, std, 1.0)
    magnitude = at_least_one / torch.where(inner_std > 0, inner_std, 1.0)
    magnitude = torch.where((magnitude < 1.0) & (inner_std > 0), magnitude, 1.0)
    gate = torch.sigmoid(-std / gate_width)
    inner = z * (magnitude * gate)[row_cell]
    return match_dtype(torch.where(row_ok, outer[episode] + beta * inner, 0.0), gain)


def _require_known(x: Array) -> Array:
    return torch.where(torch.isnan(x), 0.0, x)
