"""Advantages when several actors share an episode: one baseline per actor, per player or per game and role.

Rows are turns sorted by (episode, time); `actor` names who took the turn. The running role baseline of self-play keeps
state between batches and lives in `state.RoleBaseline`.
"""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import check_unit, in_torch
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    require_flat,
    require_option,
    require_rows,
)
from robot_rl.advantage.normalise import EdgeRules, as_cells, normalise, normalise_units
from robot_rl.advantage.returns import actor_return, position
from robot_rl.advantage.segments import combine_ids, seg_count, seg_mean


@in_torch
def agent_wise(
    score: Array,
    group: Array,
    episode: Array,
    actor: Array,
    *,
    weight: str = "activation",
    scale: str = "std",
    eps: float = 1e-6,
    std_floor: float = 1e-3,
) -> Array:
    """Outcome of the episode normalised among the rows of the same group and actor.

    Args:
        score: (E,) outcomes, NaN = unscorable.
        group: (E,) group ids, -1 = none.
        episode: (U,) episode of each turn.
        actor: (U,) actor of each turn.
        weight: "activation": every turn of the actor is an entry (the release); "episode": every episode is one entry
            per actor.
        scale: "std" or "none".
        eps: added to the deviation.
        std_floor: smallest deviation.

    Returns:
        (U,) advantages.

    Raises:
        ValueError: wrong shapes, ids or option.

    Source: Dr. MAS, agent-wise advantage normalisation for multi-agent LLM training (released code).
    """
    require_option("weight", weight, ["activation", "episode"])
    episode, actor = episode.long(), actor
    require_rows(require_flat("episode", episode), actor=actor)
    row_group = group[episode]
    cells, count = combine_ids(row_group, actor)
    cells = torch.where(row_group >= 0, cells, -1)
    unit = combine_ids(episode, actor)[0] if weight == "episode" else None
    score, rules = score[episode], EdgeRules(eps=eps, std_floor=std_floor)
    at = as_cells(cells, score, count)
    if unit is None:
        return normalise(score, at, scale=scale, rules=rules)[0]
    return normalise_units(score, at, unit, scale=scale, rules=rules)[0]


@in_torch
def amplification(score: Array, group: Array, episode: Array, actor: Array, n_actors: int) -> Array:
    """How much a baseline of the whole group would inflate the squared advantages of each actor.

    Args:
        score: (E,) outcomes.
        group: (E,) group ids, -1 = none.
        episode: (U,) episode of each turn.
        actor: (U,) dense actor ids.
        n_actors: number of actors.

    Returns:
        (n_actors,) mean over the actor's turns of ((score - group mean) / group deviation)^2, population moments over
        the episodes of the group; for one group this is (var_k + (mean_k - mean)^2) / var. NaN for an absent actor.

    Raises:
        ValueError: wrong shapes or ids.

    Source: Dr. MAS, gradient-norm amplification.
    """
    z = normalise(score, group, rules=EdgeRules(ddof=0, eps=0.0, std_floor=1e-12))
    episode = episode.long()
    return seg_mean(z[0][episode] ** 2, actor, n_actors, mask=z[1][episode])


@in_torch
def mars(
    reward: Array,
    episode: Array,
    actor: Array,
    *,
    gamma: float = 1.0,
    value: Array | None = None,
    valid: Array | None = None,
    scale: str = "none",
) -> Array:
    """Return of a turn over its player's own later turns, minus the mean over that player's turns in the batch.

    Args:
        reward: (U,) reward of each turn for the player of that turn.
        episode: (U,) episode of each turn.
        actor: (U,) player of each turn.
        gamma: discount per own turn.
        value: (U,) critic values; subtracted from the returns first, which is GAE with lambda 1 at gamma 1.
        valid: (U,) turns that count and receive an advantage, default all.
        scale: "none" or "std".

    Returns:
        (U,) advantages.

    Raises:
        ValueError: wrong shapes, ids or option.

    Source: thu-nics/MARS; the release's statistics over padding are corrected.
    """
    require_option("scale", scale, ["none", "std"])
    total = actor_return(reward, episode, actor, gamma).double()
    if value is not None:
        total = total - value.double()
    return match_dtype(normalise(total, actor, scale=scale, mask=valid)[0], reward)


@in_torch
def own_turn_weight(episode: Array, actor: Array, gamma: float) -> Array:
    """gamma^(m - 1 - j) for the j-th of the m own turns of an actor in an episode: later turns weigh more.

    Args:
        episode: (U,) episode of each turn.
        actor: (U,) actor of each turn.
        gamma: in [0, 1].

    Returns:
        (U,) float64 factors; 1 at the last own turn.

    Raises:
        ValueError: gamma outside [0, 1].

    Source: spiral-rl/spiral, turn weighting of the role-conditioned advantage.
    """
    check_unit(gamma=gamma)
    thread, count = combine_ids(episode, actor)
    remaining = seg_count(thread, count)[thread] - 1.0 - position(episode, actor).double()
    return (gamma**remaining).double()


@in_torch
def zero_sum_outcome(outcome: Array, episode: Array, actor: Array, player: int) -> Array:
    """Outcome of each turn's actor in a two-sided zero-sum game.

    Args:
        outcome: (E,) result for `player`.
        episode: (U,) episode of each turn.
        actor: (U,) actor of each turn.
        player: the actor for whom `outcome` is stated; the others get its negative.

    Returns:
        (U,) outcomes.
    """
    row = outcome[episode.long()]
    return torch.where(actor == player, row, -row)
