"""Builds the environment that shows its goals, from another environment and a log of finished tasks."""

from __future__ import annotations

from collections.abc import Callable

from robot_rl.loops.shown_goal import ShownGoal, gallery
from robot_rl.types import VecEnv
from robot_rl.verbs.logs import open_log


def make(
    num_envs: int,
    seed: int = 0,
    device: str = "cpu",
    *,
    inner: Callable[..., VecEnv],
    goals: str,
    goal_camera: str = "front",
    mismatched: bool = False,
    render_mode: str | None = None,
) -> ShownGoal:
    """`inner(num_envs, seed, device, render_mode)` that shows pictures out of the log `goals`.

    Args:
        num_envs: copies.
        seed: of starts and of the choice of pictures.
        device: of the environment that is shown.
        inner: makes the environment; it says sentences and has the goal's camera.
        goals: a log of successes in other scenes.
        goal_camera: whose pictures are goals.
        mismatched: show another goal than the one that counts, for comparison.
        render_mode: of the environment that is shown.

    Raises:
        ValueError: see `ShownGoal` and `gallery`.
    """
    pictures = gallery(open_log(goals), goal_camera)
    env = inner(num_envs=num_envs, seed=seed, device=device, render_mode=render_mode)
    return ShownGoal(env, pictures, camera=goal_camera, mismatched=mismatched, seed=seed)
