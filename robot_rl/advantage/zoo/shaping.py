"""Rewards made from potentials, gates, checklists and interventions. Pure functions of flat rows: nothing is changed
in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    require_flat,
    require_option,
    require_rows,
)
from robot_rl.advantage.returns import continues
from robot_rl.advantage.segments import check_ids, seg_count, seg_sum


@in_torch
def potential_shaping(potential: Array, next_potential: Array, discount: Array, terminated: Array) -> Array:
    """Policy-invariant shaping reward: discount · potential of the true successor - potential.

    Args:
        potential: (...) potential of the state before the step.
        next_potential: (...) potential of the true successor, before any reset; not read where terminated.
        discount: number or (...) gamma^k for a decision of k ticks.
        terminated: (...) bool; the potential after a true end is 0, that after a truncation is not.

    Returns:
        (...) shaping rewards. Their discounted sum over a terminated episode is minus the first potential, exactly.

    Raises:
        ValueError: shapes differ.

    Source: Ng, Harada and Russell 1999, Policy invariance under reward transformations.
    """
    following, over = next_potential, terminated.bool()
    for name, x in (("next_potential", following), ("terminated", over)):
        if tuple(x.shape) != tuple(potential.shape):
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected that of potential, {tuple(potential.shape)}")
    factor = discount if isinstance(discount, (int, float)) else discount.double()
    after = factor * torch.where(over, 0.0, following.double())
    return match_dtype(after - potential.double(), potential)


@in_torch
def progress_delta(progress: Array, next_progress: Array) -> Array:
    """Progress made by the step, without a discount; dense, but not policy-invariant.

    Args:
        progress: (...) progress before the step, usually in [0, 1].
        next_progress: (...) progress of the true successor.

    Returns:
        (...) next_progress - progress.
    """
    return next_progress - progress


@in_torch
def intervention_reward(
    human: Array,
    episode: Array,
    *,
    timing: str = "before",
    human_after_end: Array | None = None,
    reward: Array | None = None,
    reward_weight: float = 0.0,
) -> Array:
    """-1 where a person takes over, 0 elsewhere: the intervention itself is the reward signal.

    Args:
        human: (N,) bool, rows under human control.
        episode: (N,) dense episode ids, not falling. An intervention is not an episode end.
        timing: "before": the row just before human control starts; "at": the first human row.
        human_after_end: (E,) bool, human control starts right after the last recorded row, which is marked ("before"
            only, there is no human row to mark otherwise).
        reward: (N,) task reward to keep in part.
        reward_weight: factor of the task reward; 0 replaces it.

    Returns:
        (N,) rewards in the dtype of `reward`, else float64 or the default torch dtype. A takeover on the first row of
        an episode has no row before it.

    Raises:
        ValueError: wrong shapes, ids or option.

    Source: Luo et al., RLIF: Interactive Imitation Learning as Reinforcement Learning (recalled).
    """
    require_option("timing", timing, ["before", "at"])
    human = human.bool()
    n = require_flat("human", human)
    require_rows(n, episode=episode, reward=reward)
    goes_on = continues(episode)
    takes_over = human & ~human  # "the next row of this episode is human and this one is not"
    takes_over[:-1] = goes_on[:-1] & human[1:] & ~human[:-1]
    if timing == "before":
        marked = takes_over
        if human_after_end is not None:
            after = human_after_end.bool()
            check_ids(episode, int(after.shape[0]))
            marked = marked | (~goes_on & after[episode.long()] & ~human)
    else:
        marked = human & human
        marked[1:] = human[1:] & ~(goes_on[:-1] & human[:-1])
    out = torch.where(marked, -1.0, 0.0 * marked.double())
    if reward is not None:
        out = out + reward_weight * reward.double()
    return match_dtype(out, human if reward is None else reward)


@in_torch
def gated_reward(
    level_reward: Array, episode: Array, n_episodes: int, threshold: float | Sequence[float] = 0.0
) -> Array:
    """Lower reward levels count only in episodes whose higher levels all pass their thresholds.

    Args:
        level_reward: (L, N) reward of each level on each row, priority rising from level 0 to L - 1; typically
            level 0 is shaping and level 1 the outcome, on the last row.
        episode: (N,) dense episode ids.
        n_episodes: number of episodes.
        threshold: number or (L,); a level passes if its sum over the episode is larger. That of level 0 is not used.

    Returns:
        (N,) reward: the sum over levels of what passed. A failing level itself still counts.

    Raises:
        ValueError: wrong shapes or ids.

    Source: gated reward accumulation, G-RA (abstract, notes and a port).
    """
    if len(level_reward.shape) != 2:
        raise ValueError(f"level_reward has shape {tuple(level_reward.shape)}, expected (levels, rows)")
    levels = int(level_reward.shape[0])
    limits = [float(threshold)] * levels if isinstance(threshold, (int, float)) else [float(t) for t in threshold]
    if len(limits) != levels:
        raise ValueError(f"threshold has {len(limits)} entries, expected one per level, {levels}")
    total = level_reward[levels - 1].double()
    is_open = episode == episode
    for level in range(levels - 2, -1, -1):  # L steps over whole rows, from the outcome down
        above = seg_sum(level_reward[level + 1], episode, n_episodes)
        is_open = is_open & (above > limits[level + 1])[episode.long()]
        total = total + torch.where(is_open, level_reward[level].double(), 0.0)
    return match_dtype(total, level_reward)


@in_torch
def checklist_reward(
    weight: Array, passed: Array, turn: Array, n_turns: int, *, item: Array | None = None, needs: Array | None = None
) -> Array:
    """Share of the weight of a turn's checklist that was met, dependencies included.

    Args:
        weight: (M,) weight > 0 of each item.
        passed: (M,) 1 or 0; NaN = the judge failed, which makes its whole turn NaN (excluded), not 0.
        turn: (M,) dense turn of each item.
        n_turns: number of turns.
        item: (D,) item of each dependency.
        needs: (D,) the item that must have passed too.

    Returns:
        (n_turns,) reward in [0, 1]; NaN without items or after a judge failure.

    Raises:
        ValueError: wrong shapes or ids, or only one of `item` and `needs`.

    Source: CM2, checklist rewards (released structure).
    """
    weight = weight.double()
    require_rows(require_flat("passed", passed), weight=weight, turn=turn)
    if (item is None) != (needs is None):
        raise ValueError("item and needs describe dependencies together, got only one; give both or none")
    m = int(passed.shape[0])
    met = passed.double()
    broken = seg_count(turn, n_turns, mask=torch.isnan(met)) > 0
    counts = torch.where(torch.isnan(met), 0.0, met)
    if item is not None and needs is not None:
        check_ids(needs, m)
        missing = seg_sum(1.0 - counts[needs.long()], item, m)
        counts = torch.where(missing > 0, 0.0, counts)
    total = seg_sum(weight, turn, n_turns)
    score = seg_sum(weight * counts, turn, n_turns) / torch.where(total > 0, total, 1.0)
    return match_dtype(torch.where(broken | (total <= 0), float("nan"), score), passed)
