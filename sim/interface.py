"""What every vector environment of ours does alike: spaces from the passport, actions checked and clipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.world import World
from robot_rl.types import Array, IOSpec, StateDict
from robot_rl.types.data import all_finite

_LOW, _HIGH = np.float32(-1.0), np.float32(1.0)


def spaces(io: IOSpec) -> tuple[gymnasium.spaces.Dict, gymnasium.spaces.Box]:
    """Observation and action space of one environment; actions are in [-1, 1]."""
    boxes: dict[str, gymnasium.Space] = {}
    for key, (shape, dtype) in io.obs.items():
        bounds = (0, 255) if dtype == "uint8" else (-np.inf, np.inf)
        boxes[key] = gymnasium.spaces.Box(*bounds, shape, np.dtype(dtype).type)
    return gymnasium.spaces.Dict(boxes), gymnasium.spaces.Box(-1.0, 1.0, (io.action_dim,), np.float32)


def introduce(env: VectorEnv, io: IOSpec, num_envs: int) -> None:
    """Give N environments behind an interface what Gymnasium asks of them: spaces and metadata."""
    env.single_observation_space, env.single_action_space = spaces(io)
    env.observation_space = batch_space(env.single_observation_space, num_envs)
    env.action_space = batch_space(env.single_action_space, num_envs)
    env.metadata = {
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "render_modes": ["rgb_array"],
        "render_fps": max(1, round(io.control_hz)),
    }


def world_io(
    world: World, obs_names: Sequence[str], obs: dict[str, tuple[tuple[int, ...], str]] | None = None, **more: Any
) -> IOSpec:
    """The interface of a world.

    Args:
        world: the task.
        obs_names: of the components of "state".
        obs: key -> (shape, dtype name); None is the state alone.
        more: other fields of `IOSpec`.
    """
    return IOSpec(
        obs={"state": ((len(obs_names),), "float32")} if obs is None else obs,
        action_names=tuple(world.action_names),
        action_low=tuple(world.action_low),
        action_high=tuple(world.action_high),
        action_units=tuple(world.action_units),
        control_hz=float(world.control_hz),
        obs_names=tuple(obs_names),
        **more,
    )


def check_shape(shape: Sequence[int], num_envs: int, io: IOSpec) -> None:
    """Refuse actions of another shape than (N, A).

    Raises:
        ValueError: it is another.
    """
    if tuple(shape) != (num_envs, io.action_dim):
        raise ValueError(
            f"action has shape {tuple(shape)}, expected {(num_envs, io.action_dim)}: one row per environment"
        )


def check_saved(state: StateDict, targets: Mapping[str, Array], world: World, num_envs: int) -> None:
    """Compare a saved state with the arrays that it is to fill.

    Raises:
        ValueError: one is absent or of another shape.
    """
    for key, target in targets.items():
        found = tuple(np.shape(state[key])) if key in state else "nothing"
        if found != tuple(target.shape):
            raise ValueError(
                f"saved environment state has {found} for '{key}', expected {tuple(target.shape)}; it belongs to "
                f"another world, engine, number of environments or randomisation (this: {world.name}, {num_envs} "
                "copies)"
            )


def part(state: StateDict, prefix: str) -> dict[str, Any]:
    """The entries whose keys begin so, without that beginning."""
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}


def check_actions(actions: object, num_envs: int, io: IOSpec) -> np.ndarray:
    """(N, A) float32 actions, clipped to [-1, 1], as a new array.

    Raises:
        ValueError: another shape, or NaN; names the environment and the actuator.
    """
    action = np.asarray(actions, np.float32)
    check_shape(action.shape, num_envs, io)
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
    absent = [name for name in vars(World) if name[0] != "_" and name not in dir(world)]
    if absent:
        raise ValueError(
            f"{type(world).__name__} is no world: it has no {', '.join(absent)}; a world is a class as in "
            "docs/add_a_world.md, a Gymnasium task inherits from gymnasium.Env"
        )
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}, expected at least 1")
    for name in (*cameras, *([options.render_camera] if options.render_camera else [])):
        if name not in world.cameras:
            raise ValueError(f"world '{world.name}' has no camera '{name}'; it has {list(world.cameras)}")
    noise = 1 if options.randomize is None else int(np.size(options.randomize.noise))
    if noise not in (1, len(world.obs_names)):
        raise ValueError(
            f"randomize.noise has {noise} numbers, and the state of world '{world.name}' has {len(world.obs_names)} "
            "components; give one number, or one for each"
        )
    if world.episode_steps < 1:
        raise ValueError(f"{world.name}.episode_steps is {world.episode_steps}, expected at least 1 control step")
    if not options.state and not cameras:
        raise ValueError("nothing to observe: state is false and cameras is empty; set one of them")
    if options.teacher_state and (cameras or options.proprio is not None or not options.state):
        raise ValueError('teacher_state shows the whole state as "state"; leave cameras, proprio and state=false out')
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"render_mode is '{render_mode}', expected 'rgb_array' or null")
