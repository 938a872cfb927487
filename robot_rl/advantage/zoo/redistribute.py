"""Turn rewards from learned progress (SPA), answer probability (IGPO) and the effect of an observation (InfoPO)."""

from __future__ import annotations

import math

from robot_rl.advantage.kinds import (
    Array,
    as_array,
    boolean,
    cast,
    double,
    integer,
    library,
    require_flat,
    require_rows,
    sigmoid,
)
from robot_rl.advantage.normalise import as_cells, normalise
from robot_rl.advantage.returns import continues, discounted_return, position, unscorable_rows
from robot_rl.advantage.segments import combine_ids, seg_count, seg_mean, seg_sum, seg_var


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
    contribution = as_array(contribution)
    outcome = as_array(outcome, contribution)
    total = seg_sum(contribution, as_array(episode, contribution), int(outcome.shape[0]))
    return cast((total - double(outcome)) ** 2, contribution)


def spa_reward(
    contribution: Array,
    episode: Array,
    *,
    grounding: Array = None,
    outcome: Array = None,
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
    contribution = as_array(contribution)
    xp = library(contribution)
    episode = as_array(episode, contribution)
    value = double(contribution)
    if enforce_sum:
        if outcome is None:
            raise ValueError("enforce_sum needs the outcome of each episode, got None")
        outcome = double(as_array(outcome, contribution))
        count = int(outcome.shape[0])
        gap = outcome - seg_sum(value, episode, count)
        turns = seg_count(episode, count)
        value = value + (gap / xp.where(turns > 0, turns, 1.0))[integer(episode)]
    out = alpha * value
    if grounding is not None:
        grounding = as_array(grounding, contribution)
        require_rows(require_flat("contribution", contribution), grounding=grounding)
        out = out + beta * double(grounding)
    return cast(out, contribution)


def spa_release_weight(episode: Array) -> Array:
    """Weight of a turn in the released policy update: the number of later turns, 0 for the last; for comparison only.

    Args:
        episode: (U,) dense episode ids, rows sorted by (episode, time).

    Returns:
        (U,) float64.

    Source: WangHanLinHenry/SPA-RL-Agent (the paper describes the dense reward of `spa_reward`).
    """
    episode = as_array(episode)
    ids, count = combine_ids(episode, episode)
    return seg_count(ids, count)[ids] - 1.0 - double(position(episode))


def answer_probability(logp: Array, context: Array, n_contexts: int, *, mask: Array = None) -> Array:
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
    logp = as_array(logp)
    return library(logp).exp(seg_mean(logp, as_array(context, logp), n_contexts, mask=mask))


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
    prob = as_array(prob)
    episode = integer(as_array(episode, prob))
    require_rows(require_flat("prob", prob), episode=episode)
    outcome = double(as_array(outcome, prob))
    after = double(prob) * 1.0
    after[:-1] = double(prob)[1:]
    return cast(library(prob).where(continues(episode), after - double(prob), outcome[episode]), prob)


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
    reward = as_array(reward)
    xp = library(reward)
    episode = integer(as_array(episode, reward))
    row_group = as_array(group, reward)[episode]
    bad = unscorable_rows(reward, episode) | (row_group < 0)
    known = xp.where(bad, float("nan"), double(reward))
    if release_norm:
        cells, count = combine_ids(row_group, position(episode))
        z = normalise(known, cells, n_cells=count, scale="none")[0]
    else:
        z = normalise(known, row_group)[0]
    return cast(xp.where(bad, 0.0, discounted_return(z, episode, gamma)), reward)


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
    logp_with = as_array(logp_with)
    xp = library(logp_with)
    episode = as_array(episode, logp_with)
    n_turns = require_flat("episode", episode)
    gap = double(logp_with) - double(as_array(logp_without, logp_with))
    own = seg_mean(gap, as_array(turn, logp_with), n_turns)
    after = own * 1.0
    after[:-1] = own[1:]
    return cast(xp.where(continues(episode) & ~xp.isnan(after), after, 0.0), logp_with)


def infopo_beta(epoch: float, *, beta: float = 0.1, decay: float = 0.0) -> float:
    """Weight of the intrinsic part, beta · exp(-decay · epoch).

    Args:
        epoch: epochs done.
        beta: weight at the start.
        decay: rate per epoch.
    """
    return beta * math.exp(-decay * epoch)


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
    gain = as_array(gain)
    xp = library(gain)
    episode, length = integer(as_array(episode, gain)), double(as_array(length, gain))
    score = double(as_array(score, gain))
    group = as_array(group, gain)
    require_rows(require_flat("gain", gain), length=length, episode=episode)
    cells = as_cells(group, score)
    ok = cells.inside & ~xp.isnan(score)
    std = xp.sqrt(_require_known(seg_var(score, cells.ids, cells.n, mask=ok)))
    outer = normalise(score, group, eps=eps)[0]

    row_cell, row_ok = cells.ids[episode], ok[episode]
    per_row = double(gain) / xp.where(length > 0, length, 1.0)
    use = row_ok & (per_row != 0) & (length > 0)
    count = seg_count(row_cell, cells.n, weight=length, mask=use)
    mean = _require_known(seg_mean(per_row, row_cell, cells.n, weight=length, mask=use))
    inner_std = xp.sqrt(_require_known(seg_var(per_row, row_cell, cells.n, weight=length, mask=use)))
    # One value has no deviation: it is centred only, and so becomes 0.
    divisor = xp.where(count > 1, inner_std + eps, 1.0)
    z = xp.where(use, (per_row - mean[row_cell]) / divisor[row_cell], 0.0)
    at_least_one = xp.where(std > 1.0, std, 1.0)
    magnitude = at_least_one / xp.where(inner_std > 0, inner_std, 1.0)
    magnitude = xp.where((magnitude < 1.0) & (inner_std > 0), magnitude, 1.0)
    gate = sigmoid(-std / gate_width)
    inner = z * (magnitude * gate)[row_cell]
    return cast(xp.where(row_ok, outer[episode] + beta * inner, 0.0), gain)


def _require_known(x: Array) -> Array:
    xp = library(x)
    return xp.where(xp.isnan(x), 0.0, x)


def redistributed_mask(reward: Array, episode: Array, mask: Array = None) -> Array:
    """Rows that may enter the loss after a redistribution: those of episodes without a NaN reward.

    Args:
        reward: (U,) redistributed rewards.
        episode: (U,) episode ids.
        mask: (U,) mask before, default all.

    Returns:
        (U,) bool.
    """
    reward = as_array(reward)
    ok = ~unscorable_rows(reward, as_array(episode, reward))
    return ok if mask is None else ok & boolean(as_array(mask, reward))
