"""The goals of a Gymnasium task (`gymnasium_robotics.core.GoalEnv`): its own reward and end, for any achieved goal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np

from robot_rl.sim.gym_copies import Layout
from robot_rl.types import Goals


@runtime_checkable
class Paying(Protocol):
    """A task that says what any achieved goal earns under any other."""

    def compute_reward(self, achieved_goal: object, desired_goal: object, info: object, /) -> Any:
        """The reward of a step that led to `achieved_goal`."""
        ...


@runtime_checkable
class Ending(Protocol):
    """A task that says whether reaching a goal ends the episode."""

    def compute_terminated(self, achieved_goal: object, desired_goal: object, info: object, /) -> Any:
        """Whether a step that led to `achieved_goal` is the last one."""
        ...


Rows = Callable[[np.ndarray, np.ndarray], np.ndarray]


def gym_goals(env: gymnasium.Env, layout: Layout) -> Goals | None:
    """What a task says of goals, or None where it has none, reads an `info` to say it, or also shows pictures, in which
    the goal may be drawn.

    The task's `compute_reward(achieved, desired, info)` and, where there is one, `compute_terminated` are asked with an
    empty `info`.

    Args:
        env: before its first reset: a task that draws another goal when one is reached may do so when it is asked.
        layout: of its observation.
    """
    shown = next((part for part in layout.parts if part.path == ("desired_goal",)), None)
    task = env.unwrapped
    if not layout.goal or layout.images or shown is None or not isinstance(task, Paying):
        return None
    columns, width = slice(shown.start, shown.start + shown.size), layout.goal
    same, ends = np.zeros(width), None
    if isinstance(task, Ending):
        ends = over_rows(task.compute_terminated, width)
        if ends is None:
            return None
        ends = ends if bool(ends(same[None], same[None])[0]) else None

    def show(state: np.ndarray, asked: np.ndarray, goal: np.ndarray) -> np.ndarray:
        other = state.copy()
        other[:, columns] = goal
        return other

    pays = over_rows(task.compute_reward, width)
    return None if pays is None else Goals(width, width, show, pays, ends)


def over_rows(function: Callable[[np.ndarray, np.ndarray, dict], Any], width: int) -> Rows | None:
    """(achieved (B, G), goal (B, G)) -> (B,) of a task's function, called row by row where it takes no batches; None
    where it takes no goals without the `info` of their step."""

    def by_row(achieved: np.ndarray, goal: np.ndarray) -> np.ndarray:
        return np.array([float(function(a, g, {})) for a, g in zip(achieved, goal)], np.float32)

    def at_once(achieved: np.ndarray, goal: np.ndarray) -> np.ndarray:
        return np.asarray(function(achieved, goal, {}), np.float32)

    achieved, goal = np.zeros((3, width)), np.stack([np.zeros(width), np.full(width, 0.5), np.full(width, 1e3)])
    try:
        single = by_row(achieved, goal)
    except Exception:  # somebody's own code raises anything
        return None
    try:
        found = at_once(achieved, goal)
    except Exception:  # such as `bool()` of an array
        return by_row
    return at_once if found.shape == (3,) and np.array_equal(found, single) else by_row
