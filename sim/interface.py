"""What every vector environment of ours does alike: spaces from the passport, actions checked and clipped."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import numpy as np

from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.world import World
from robot_rl.types import IOSpec
from robot_rl.types.data import all_finite

_LOW, _HIGH = np.float32(-1.0), np.float32(1.0)


def spaces(io: IOSpec) -> tuple[gymnasium.spaces.Dict, gymnasium.spaces.Box]:
    """Observation and action space of one environment; actions are in [-1, 1]."""
    boxes: dict[str, gymnasium.Space] = {}
    for key, (shape, dtype) in io.obs.items():
        bounds = (0, 255) if dtype == "uint8" else (-np.inf, np.inf)
        boxes[key] = gymnasium.spaces.Box(*bounds, shape, np.dtype(dtype).type)
    return gymnasium.spaces.Dict(boxes), gymnasium.spaces.Box(-1.0, 1.0, (io.action_dim,), np.float32)


def checked(actions: object, num_envs: int, io: IOSpec) -> np.ndarray:
    """(N, A) float32 actions, clipped to [-1, 1], as a new array.

    Raises:
        ValueError: another shape, or NaN; names the environment and the actuator.
    """
    action = np.asarray(actions, np.float32)
    if action.shape != (num_envs, io.action_dim):
        raise ValueError(
            f"action has shape {action.shape}, expected {(num_envs, io.action_dim)}: one row per environment"
        )
    action = np.minimum(np.maximum(action, _LOW), _HIGH)  # keeps NaN
    if not all_finite(action):
        index, column = np.argwhere(np.isnan(action))[0]
        raise ValueError(
            f"action of environment {index} is nan at {column} ('{io.action_names[column]}'), expected numbers in "
            "[-1, 1]; the policy has diverged"
        )
    return action


def check_options(
    options: EngineOptions, cameras: Sequence[str], num_envs: int, world: World, render_mode: str | None
) -> None:
    """Refuse what a world does not have.

    Raises:
        ValueError: says what is wrong, and what there is.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}, expected at least 1")
    for name in (*cameras, *([options.render_camera] if options.render_camera else [])):
        if name not in world.cameras:
            raise ValueError(f"world '{world.name}' has no camera '{name}'; it has {list(world.cameras)}")
    if world.episode_steps < 1:
        raise ValueError(f"{world.name}.episode_steps is {world.episode_steps}, expected at least 1 control step")
    if not options.state and not cameras:
        raise ValueError("nothing to observe: state is false and cameras is empty; set one of them")
    if options.teacher_state and (cameras or options.proprio is not None or not options.state):
        raise ValueError('teacher_state shows the whole state as "state"; leave cameras, proprio and state=false out')
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"render_mode is '{render_mode}', expected 'rgb_array' or null")
