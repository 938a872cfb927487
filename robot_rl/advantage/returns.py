"""Discounted returns over the turns of episodes, and positions in them, on flat rows with ids.

Rows are sorted by (episode, time). An episode with a NaN reward is unscorable: all its returns are NaN, and group
statistics leave them out; no other episode is touched.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from robot_rl.advantage.arrays import check_unit, in_torch
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    readable,
    require_flat,
    require_ids,
    require_rows,
    require_sorted,
)
from robot_rl.advantage.scan import reverse_linear_scan
from robot_rl.advantage.segments import factorise, seg_count, stable_order


@in_torch
def linear_recurrence(x: Array, decay: Array) -> Array:
    """y_t = x_t + decay_t · y_{t-1} from the first row on, in float64.

    Args:
        x: (N,) input.
        decay: (N,) factor of the row before; that of row 0 is not used.

    Returns:
        (N,) float64.
    """
    return torch.flip(reverse_linear_scan(torch.flip(x.double(), (0,)), torch.flip(decay.double(), (0,))), (0,))


@in_torch
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


@in_torch
def unscorable_rows(reward: Array, episode: Array) -> Array:
    """Rows of episodes in which some reward is NaN.

    Args:
        reward: (N,) rewards.
        episode: (N,) integer episode ids.

    Returns:
        (N,) bool.
    """
    bad = torch.isnan(reward)
    if readable(bad) and not bool(bad.any()):
        return bad
    ids, count = factorise(episode)
    return (seg_count(ids, count, mask=bad) > 0)[ids]


@in_torch
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
    n = require_flat("reward", reward)
    keep = None if keep is None else keep.bool()
    require_rows(n, episode=episode, keep=keep)
    require_ids("episode", episode)
    require_sorted("episode", episode)
    check_unit(gamma=gamma)
    if n == 0:
        return match_dtype(reward, reward)
    carry = continues(episode) if keep is None else continues(episode) & keep
    total = reverse_linear_scan(reward.double(), carry.double() * gamma)
    # A NaN spreads over the part of its episode before it only; the whole episode is unscorable.
    bad = unscorable_rows(reward, episode)
    if not (readable(bad) and not bool(bad.any())):
        total = torch.where(bad, float("nan"), total)
    return match_dtype(total, reward)


class Threads(NamedTuple):
    """Rows regrouped into one thread per actor and episode: `order` sorts them, `ids` (sorted) names the threads."""

    order: Array
    ids: Array


@in_torch
def threads(episode: Array, actor: Array) -> Threads:
    """Each actor's own rows of an episode in their order, which interleaved play hides.

    Args:
        episode: (N,) episode ids.
        actor: (N,) actor ids.
    """
    ids, _ = factorise(episode, actor)
    order = stable_order(ids)
    return Threads(order, ids[order])


@in_torch
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
    order, ids = threads(episode, actor)
    out = torch.zeros_like(match_dtype(reward, reward))
    out[order] = discounted_return(reward[order], ids, gamma)
    return out


@in_torch
def position(episode: Array, actor: Array | None = None) -> Array:
    """Number of earlier rows of the same episode, counting the same actor's rows only if `actor` is given.

    Args:
        episode: (N,) episode ids; rows sorted by (episode, time).
        actor: (N,) actor ids or None.

    Returns:
        (N,) int64: `turn_index`, or `own_turn_index` with actors.
    """
    if actor is None:
        require_sorted("episode", episode)
        n = int(episode.shape[0])
        if n == 0:
            return episode.new_zeros(0, dtype=torch.int64)
        row = torch.arange(n, device=episode.device)
        last = ~continues(episode)
        start = torch.roll(last, 1) * row  # the row behind a last row starts an episode; row 0 is 0 either way
        return row - start.cummax(0).values
    order, ids = threads(episode, actor)
    out = episode.new_zeros(int(episode.shape[0]), dtype=torch.int64)
    out[order] = position(ids)
    return out
