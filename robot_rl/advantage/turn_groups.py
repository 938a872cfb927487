"""Advantages of single turns against the same turn, state or step of other rollouts: TRLOO, GiGPO, MAPO.

All functions take flat turn rows sorted by (episode, time), with an episode id per row; `group` holds one id per
episode. An episode with a NaN reward is unscorable: it leaves every statistic and gets 0.
"""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    require_flat,
    require_ids,
    require_option,
    require_rows,
    require_sorted,
)
from robot_rl.advantage.normalise import EdgeRules, as_cells, normalise
from robot_rl.advantage.returns import discounted_return, position
from robot_rl.advantage.segments import check_ids, combine_ids, seg_count, seg_sum


def _episode_rows(reward: Array, episode: Array, group: Array) -> tuple[Array, Array, Array]:
    """Checked (reward, episode int64, dense group per episode or -1)."""
    n = require_flat("reward", reward)
    require_rows(n, episode=episode)
    require_ids("episode", episode)
    require_sorted("episode", episode)
    dense = as_cells(group, group)
    group = torch.where(dense.inside, dense.ids, -1)
    check_ids(episode, int(group.shape[0]))
    return reward, episode.long(), group


def _turn_rows(reward: Array, episode: Array, group: Array) -> tuple[Array, Array, Array, Array]:
    """(reward, episode int64, dense group per row or -1, first row of each episode)."""
    reward, episode, group = _episode_rows(reward, episode, group)
    first = episode == episode
    first[1:] = episode[1:] != episode[:-1]
    return reward, episode, group[episode], first


def _cell(group: Array, index: Array) -> tuple[Array, int]:
    """Dense cells (group, index), and their number; -1 where the group is -1."""
    ids, count = combine_ids(group, index)
    return torch.where(group >= 0, ids, -1), count


@in_torch
def trloo(
    reward: Array,
    episode: Array,
    group: Array,
    *,
    gamma: float = 1.0,
    turn_index: Array | None = None,
    singleton: str = "zero",
    absent: str = "skip",
) -> Array:
    """Turn-level leave-one-out: the return of a turn minus that of the same turn in the other rollouts.

    Args:
        reward: (U,) reward of each turn.
        episode: (U,) episode of each turn, not falling.
        group: (E,) group of each episode, -1 = none.
        gamma: discount per turn.
        turn_index: (U,) default 0, 1, ... inside each episode.
        singleton: result where only one rollout reached the turn: "zero", or "raw" (the release).
        absent: "skip" compares with rollouts that reached the turn; "zero" counts the others with return 0.

    Returns:
        (U,) advantages.

    Raises:
        ValueError: wrong shapes, ids, gamma or option.

    Source: hkust-nlp/KernelGYM, TRLOO; `absent` is ours.
    """
    require_option("singleton", singleton, ["zero", "raw"])
    require_option("absent", absent, ["skip", "zero"])
    reward, episode, row_group, first = _turn_rows(reward, episode, group)
    value = discounted_return(reward, episode, gamma)
    index = position(episode) if turn_index is None else turn_index
    cells, count = _cell(row_group, index)
    if absent == "skip":
        return normalise(
            value,
            as_cells(cells, value, count),
            center="leave_one_out",
            scale="none",
            rules=EdgeRules(singleton=singleton),
        )[0]
    ok = ~torch.isnan(value) & (row_group >= 0)
    known = torch.where(ok, value.double(), 0.0)
    cells = torch.where(cells >= 0, cells, 0)
    groups = as_cells(row_group, reward)
    members = seg_count(groups.ids, groups.n, mask=first & ok)[groups.ids]
    mean = seg_sum(known, cells, count, mask=ok)[cells] / torch.where(members > 0, members, 1.0)
    out = (known - mean) * members / torch.where(members > 1, members - 1.0, 1.0)
    alone = known if singleton == "raw" else torch.zeros_like(known)
    return match_dtype(torch.where(ok, torch.where(members > 1, out, alone), 0.0), reward)


@in_torch
def gigpo(
    reward: Array,
    episode: Array,
    group: Array,
    anchor: Array,
    *,
    gamma: float = 0.95,
    omega: float = 1.0,
    mode: str = "mean_norm",
    unit: str = "episode",
    first_visit: bool = False,
    score: Array | None = None,
) -> Array:
    """Episode advantage plus omega times the advantage of the turn among all visits of the same state in the group.

    Args:
        reward: (U,) reward of each turn.
        episode: (U,) episode of each turn, not falling.
        group: (E,) group of each episode, -1 = none.
        anchor: (U,) integer key of the state in which the turn was taken (see `anchors`), 0 = none. Keys are compared
            inside a group only, so equal observations of different tasks are never pooled.
        gamma: discount of the turn returns.
        omega: weight of the turn part.
        mode: "mean_norm" (subtract the mean) or "mean_std_norm".
        unit: "episode" counts every episode once in the episode part; "rows" counts its turns (the release).
        first_visit: only the first visit of a state in an episode is a member; later visits get no turn part.
        score: (E,) outcomes for the episode part, default the sum of the rewards.

    Returns:
        (U,) advantages.

    Raises:
        ValueError: wrong shapes, ids, gamma or option.

    Source: Feng et al., Group-in-Group Policy Optimization; release settings from its public copies.
    """
    require_option("mode", mode, ["mean_norm", "mean_std_norm"])
    require_option("unit", unit, ["episode", "rows"])
    reward, episode, row_group, _ = _turn_rows(reward, episode, group)
    require_rows(int(reward.shape[0]), anchor=anchor)
    require_ids("anchor", anchor)
    scale = "std" if mode == "mean_std_norm" else "none"
    episodes = int(group.shape[0])
    # The sum is NaN in an episode with a NaN reward.
    outcome = seg_sum(reward, episode, episodes) if score is None else score.double()
    if unit == "episode":
        outer = normalise(outcome, group, scale=scale)[0][episode]
    else:
        outer = normalise(outcome[episode], row_group, scale=scale)[0]
    value = discounted_return(reward, episode, gamma)
    cells, count = _cell(row_group, anchor)
    cells = torch.where(anchor != 0, cells, -1)
    if first_visit:
        visit, _ = combine_ids(episode, torch.where(cells >= 0, cells, count))
        cells = torch.where(position(visit, visit) == 0, cells, -1)
    inner = normalise(value.double(), as_cells(cells, value.double(), count), scale=scale)[0]
    return match_dtype(outer + omega * inner, reward)


@in_torch
def mapo(
    reward: Array,
    episode: Array,
    group: Array,
    *,
    gamma: float = 0.9,
    experimental_alpha: float = 0.5,
    batch_on: str = "reward",
    turn_index: Array | None = None,
) -> Array:
    """Mix of the turn return normalised among the same turns of the group and a normalisation over the batch.

    Args:
        reward: (U,) judge reward of each turn.
        episode: (U,) episode of each turn, not falling.
        group: (E,) group of each episode, -1 = none.
        gamma: discount per turn, 0.9 to 1.
        experimental_alpha: weight of the group part; the published text gives no value, so this is a reconstruction.
        batch_on: the batch part normalises the turn "reward" or the turn "returns".
        turn_index: (U,) default 0, 1, ... inside each episode.

    Returns:
        (U,) advantages.

    Raises:
        ValueError: wrong shapes, ids, gamma or option.

    Source: MAPO, multi-turn group optimisation with judge rewards (abstract and notes; mixing weight reconstructed).
    """
    require_option("batch_on", batch_on, ["reward", "returns"])
    reward, episode, row_group, _ = _turn_rows(reward, episode, group)
    value = discounted_return(reward, episode, gamma).double()
    index = position(episode) if turn_index is None else turn_index
    cells, count = _cell(row_group, index)
    turn = normalise(value, as_cells(cells, value, count))[0]
    grouped = torch.where(row_group >= 0, 0, -1)
    entries = value if batch_on == "returns" else torch.where(torch.isnan(value), float("nan"), reward.double())
    batch = normalise(entries, as_cells(grouped, entries, 1))[0]
    return match_dtype(experimental_alpha * turn + (1.0 - experimental_alpha) * batch, reward)
