"""Discounted returns over the turns of episodes, and positions in them, on flat rows with ids.

Rows are sorted by (episode, time). An episode with a NaN reward is unscorable: all its returns are NaN, and group
statistics leave them out; no other episode is touched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from robot_rl.advantage.kinds import (
    Array,
    arange,
    as_array,
    boolean,
    double,
    library,
    match_dtype,
    readable,
    require_flat,
    require_ids,
    require_rows,
    require_sorted,
    require_unit_interval,
    zeros,
)
from robot_rl.advantage.scan import reverse_linear_scan, solve
from robot_rl.advantage.segments import factorise, seg_count, stable_order


def linear_recurrence(x: Array, decay: Array) -> Array:
    """y_t = x_t + decay_t · y_{t-1} from the first row on, in float64.

    Args:
        x: (N,) input.
        decay: (N,) factor of the row before; that of row 0 is not used.

    Returns:
        (N,) float64.
    """
    xp = library(x)
    return xp.flip(reverse_linear_scan(xp.flip(double(x), (0,)), xp.flip(double(decay), (0,))), (0,))


def continues(episode: Array) -> Array:
    """Whether the next row belongs to the same episode.

    Args:
        episode: (N,) episode of each row.

    Returns:
        (N,) bool; false on the last row.
    """
    same = episode != episode
    same[:-1] = episode[1:] == episode[:-1]
    return same


def unscorable_rows(reward: Array, episode: Array) -> Array:
    """Rows of episodes in which some reward is NaN.

    Args:
        reward: (N,) rewards.
        episode: (N,) integer episode ids.

    Returns:
        (N,) bool.
    """
    bad = library(reward).isnan(reward)
    if readable(bad) and not bool(bad.any()):
        return bad
    ids, count = factorise(episode)
    return (seg_count(ids, count, mask=bad) > 0)[ids]


def discounted_return(reward: Array, episode: Array, gamma: float, *, keep: Array | None = None) -> Array:
    """G_t = r_t + gamma · G_{t+1} inside each episode.

    Args:
        reward: (N,) rewards of turns or steps, sorted by (episode, time); NaN marks its episode unscorable.
        episode: (N,) episode ids, not falling.
        gamma: discount per row in [0, 1]; kept in double precision.
        keep: (N,) bool, false where the return of the next row is not carried into this one. Default: carry.

    Returns:
        (N,) returns in the dtype of `reward`; NaN in unscorable episodes.

    Raises:
        ValueError: wrong shapes, gamma outside [0, 1], or rows not sorted.
    """
    reward = as_array(reward)
    xp = library(reward)
    n = require_flat("reward", reward)
    episode = as_array(episode, reward)
    keep = None if keep is None else boolean(as_array(keep, reward))
    require_rows(n, episode=episode, keep=keep)
    require_ids("episode", episode)
    require_sorted("episode", episode)
    require_unit_interval(gamma=gamma)
    if n == 0:
        return match_dtype(reward, reward)
    carry = continues(episode) if keep is None else continues(episode) & keep
    if isinstance(reward, np.ndarray):
        decay = np.full(n, gamma, np.float64)
        decay[~carry] = 0.0
        total = solve(reward.astype(np.float64), decay)  # both are scratch: no copies inside
    else:
        total = reverse_linear_scan(double(reward), double(carry) * gamma)
    # A NaN spreads over the part of its episode before it only; the whole episode is unscorable.
    bad = unscorable_rows(reward, episode)
    if not (readable(bad) and not bool(bad.any())):
        total = xp.where(bad, float("nan"), total)
    return match_dtype(total, reward)


class Threads(NamedTuple):
    """Rows regrouped into one thread per actor and episode: `order` sorts them, `ids` (sorted) names the threads."""

    order: Array
    ids: Array


def threads(episode: Array, actor: Array) -> Threads:
    """Each actor's own rows of an episode in their order, which interleaved play hides.

    Args:
        episode: (N,) episode ids.
        actor: (N,) actor ids.
    """
    ids, _ = factorise(episode, actor)
    order = stable_order(ids)
    return Threads(order, ids[order])


def actor_return(reward: Array, episode: Array, actor: Array, gamma: float) -> Array:
    """`discounted_return` over each actor's own rows; the discount counts that actor's rows only.

    Args:
        reward: (N,) reward of each turn for the actor of that turn.
        episode: (N,) episode ids.
        actor: (N,) actor of each turn.
        gamma: discount per own turn.

    Returns:
        (N,) returns.

    Raises:
        ValueError: wrong shapes or gamma outside [0, 1].
    """
    reward = as_array(reward)
    episode, actor = as_array(episode, reward), as_array(actor, reward)
    order, ids = threads(episode, actor)
    out = library(reward).zeros_like(match_dtype(reward, reward))
    out[order] = discounted_return(reward[order], ids, gamma)
    return out


def position(episode: Array, actor: Array | None = None) -> Array:
    """Number of earlier rows of the same episode, counting the same actor's rows only if `actor` is given.

    Args:
        episode: (N,) episode ids; rows sorted by (episode, time).
        actor: (N,) actor ids or None.

    Returns:
        (N,) int64: `turn_index`, or `own_turn_index` with actors.
    """
    episode = as_array(episode)
    if actor is None:
        require_sorted("episode", episode)
        n = int(episode.shape[0])
        if n == 0:
            return zeros(0, episode, "int64")
        row = arange(n, episode)
        last = ~continues(episode)
        if isinstance(episode, torch.Tensor):
            start = torch.roll(last, 1) * row  # the row behind a last row starts an episode; row 0 is 0 either way
            return row - start.cummax(0).values
        end = np.flatnonzero(last) + 1
        length = np.diff(end, prepend=0)
        return row - np.repeat(end - length, length)
    order, ids = threads(episode, as_array(actor, episode))
    out = zeros(int(episode.shape[0]), episode, "int64")
    out[order] = position(ids)
    return out
