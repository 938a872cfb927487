"""Second readings of an episode: relabelled with a goal that it did reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from robot_rl.advantage.kinds import Array

Fragment = dict[str, Array]


def relabel(
    fields: Mapping[str, Array],
    goal_fn: Callable[[Mapping[str, Array]], Any],
    reward_fn: Callable[[Mapping[str, Array], object], tuple[Array, Array]],
) -> Fragment:
    """A new fragment of the same steps with the reward and the end of another goal.

    Args:
        fields: name -> (T, ...) columns of one episode; needs `reward`, `terminated` and `truncated`.
        goal_fn: fields -> goal, for instance what the last step achieved.
        reward_fn: (fields, goal) -> ((T,) reward, (T,) bool terminated).

    Returns:
        The columns up to the first new termination, with `goal` (whatever goal_fn returned), new `reward` and
        `terminated`, `truncated` true on the last row if the goal was not reached, and `group_id` -1: the fragment is
        off-policy and stays out of group statistics.

    Raises:
        ValueError: a required column is missing or columns differ in length.

    Source: Andrychowicz et al., Hindsight Experience Replay.
    """
    for name in ("reward", "terminated", "truncated"):
        if name not in fields:
            raise ValueError(f"fields lack {name!r}, expected reward, terminated and truncated; got {sorted(fields)}")
    length = int(fields["reward"].shape[0])
    wrong = {name: tuple(x.shape) for name, x in fields.items() if int(x.shape[0]) != length}
    if wrong:
        raise ValueError(f"columns {wrong} differ in length from reward, {length}; expected one entry per step")
    goal = goal_fn(fields)
    reward, over = reward_fn(fields, goal)
    over = over != 0
    if tuple(reward.shape) != (length,) or tuple(over.shape) != (length,):
        raise ValueError(
            f"reward_fn returned shapes {tuple(reward.shape)} and {tuple(over.shape)}, expected ({length},) twice"
        )
    end = int((over * 1).argmax()) + 1 if bool(over.any()) else length
    out: Fragment = {name: x[:end] for name, x in fields.items()}
    cut = over[:end] & ~over[:end]
    if end:
        cut[-1:] = ~over[end - 1 : end]
    return {
        **out,
        "goal": goal,
        "reward": reward[:end],
        "terminated": over[:end],
        "truncated": cut,
        "group_id": over[:end] * 0 - 1,
    }
