"""A vision-language-action policy in a loop: chunks played tick by tick, and a folder that the guard reads back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan, guidance_weights
from robot_rl.policies.nets.vla_heads import Guide
from robot_rl.policies.vla import guard
from robot_rl.policies.vla.interface import ActionStats, PolicyMeta
from robot_rl.policies.vla.player_parts import (
    ChunkPolicy,
    Recipe,
    Sight,
    build,
    idle_action,
    limit_stats,
    probe_obs,
    semantics_of,
)
from robot_rl.state import set_generator
from robot_rl.types import IOSpec, Obs, StateDict

_FRESH = 0x9E3779B9
"""Seed that no run has: with that of the run, weights that no sentence or picture reached would count as untrained."""


class VlaPlanner:
    """Chunks of a `ChunkPolicy` for an environment.

    Args:
        io: of the environment.
        recipe: what the policy is built of.
        seed: of fresh weights and draws.
        device: torch device.
    """

    def __init__(self, io: IOSpec, recipe: Recipe, *, seed: int = 0, device: str = "cpu") -> None:
        self.io, self.device = io, device
        self._draw = torch.Generator(device=device).manual_seed(seed)
        self._begin(recipe, limit_stats(io), seed)

    def _begin(self, recipe: Recipe, stats: ActionStats, seed: int) -> None:
        self.recipe = recipe
        self.sight = Sight(self.io, recipe.cameras, recipe.proprio)
        self.model = build(recipe, self.io, stats, seed=seed).to(self.device)

    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """Chunks in the environment's [-1, 1]; a flow goes on from the running chunk where `context` has a delay."""
        seen, goal = self.sight(obs, self.device)
        goal = [text + self.recipe.suffix for text in goal]
        prefix = self._prefix(context) if "delay" in context and self.recipe.head == "flow" else None
        chunk = self.model.act(seen, goal, generator=self._draw, deterministic=deterministic, prefix=prefix)
        return Plan(self.to_env(chunk.env_actions))

    @property
    def draws(self) -> Tensor:
        """State of the generator of the draws."""
        return self._draw.get_state()

    @draws.setter
    def draws(self, state: Tensor) -> None:
        set_generator(self._draw, state)

    def to_env(self, robot: Tensor) -> Tensor:
        """(..., A) robot units -> the environment's [-1, 1]."""
        low, high = (robot.new_tensor(x) for x in self.io.bounds)
        return (robot - low) / (high - low) * 2.0 - 1.0

    def to_robot(self, action: Tensor) -> Tensor:
        """Inverse of `to_env`."""
        low, high = (action.new_tensor(x) for x in self.io.bounds)
        return low + (action + 1.0) * 0.5 * (high - low)

    def _prefix(self, context: dict[str, np.ndarray]) -> Guide:
        h, running = self.recipe.horizon, torch.as_tensor(context["running"], device=self.device)
        previous = torch.as_tensor(context["previous"], dtype=torch.float32, device=self.device)
        delay = int(np.max(context["delay"], initial=0))
        weight = guidance_weights(delay, max(h - self.recipe.exec_len, delay), h).to(previous)
        return self.model.stats.from_robot(self.to_robot(previous)), weight * running.to(previous.dtype)

    def state_dict(self) -> StateDict:
        """Weights, statistics and the recipe as its bytes."""
        raw = json.dumps(self.recipe.to_dict(), sort_keys=True).encode()
        stats = self.model.stats
        names = ("mean", "std", "q01", "q99", "low", "high", "mask")
        return {
            "recipe": torch.tensor(list(raw), dtype=torch.uint8),
            "key": torch.tensor(list(stats.key.encode()), dtype=torch.uint8),
            **{f"stats.{name}": torch.as_tensor(np.array(vars(stats)[name])) for name in names},
            **{f"model.{name}": x.detach().clone() for name, x in self.model.state_dict().items()},
        }

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place; a policy of another recipe becomes that of the saved one.

        Raises:
            ValueError: what was saved is no policy of this family, or does not fit the environment.
        """
        if "recipe" not in state:
            raise ValueError("the saved state is of no vision-language-action policy; expected a run of policy=vla/...")
        recipe = Recipe.from_dict(json.loads(bytes(torch.as_tensor(state["recipe"]).tolist()).decode()))
        names = ("mean", "std", "q01", "q99", "low", "high", "mask")
        arrays = {name: torch.as_tensor(state[f"stats.{name}"]).cpu().numpy() for name in names}
        stats = ActionStats("min_max", bytes(torch.as_tensor(state["key"]).tolist()).decode(), **arrays)
        if recipe != self.recipe:
            self._begin(recipe, stats, 0)
        self.model.stats = stats
        weights = {name.removeprefix("model."): x for name, x in state.items() if name.startswith("model.")}
        self.model.load_state_dict(weights)


class VlaPlayer(ChunkedPolicy):
    """A `VlaPlanner` played tick by tick."""

    planner: VlaPlanner

    def __init__(self, io: IOSpec, planner: VlaPlanner) -> None:
        super().__init__(io, planner, _execution(io, planner.recipe))

    def load_state_dict(self, state: StateDict, /) -> None:
        """Weights, and with them the lengths of the chunks."""
        self.planner.load_state_dict(state)
        self.execution = _execution(self.io, self.planner.recipe)
        self.reset()


def _cameras_of(folder: Path) -> tuple[str, ...]:
    """Of the recipe in a folder; none where it cannot be read, which the guard tells."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return tuple(json.loads((folder / "config.json").read_text())["recipe"]["cameras"])
    return ()


def _execution(io: IOSpec, recipe: Recipe) -> Execution:
    lengths = Horizons(recipe.horizon, recipe.exec_len, recipe.exec_len)
    return Execution(lengths, io.action_dim, mode="receding", idle=idle_action(io))


def probe(model: ChunkPolicy) -> np.ndarray:
    """Answers to fixed observations, which the card keeps."""
    obs, goal = probe_obs(model.meta)
    chunk = model.act(obs, goal, generator=torch.Generator().manual_seed(0))
    return np.concatenate([x.cpu().numpy().ravel() for x in (chunk.env_actions, chunk.logp, chunk.value)])


def save_folder(folder: Path, planner: VlaPlanner, *, frozen: Sequence[str] = ()) -> Path:
    """Write weights, card and statistics as a folder that `from_folder` and the guard read.

    Raises:
        FileExistsError: the folder exists.
    """
    guard.save(folder, planner.model, {"recipe": planner.recipe.to_dict()}, probe=probe, frozen=frozen)
    return folder


def from_folder(path: str, io: IOSpec, *, device: str = "cpu", accept: Sequence[str] = ()) -> VlaPlayer:
    """A policy from the folder of a run (or made by an importer), once every check of the guard has passed.

    Args:
        path: the folder "model" of a run.
        io: of the environment or robot that it shall act in.
        device: torch device.
        accept: checks of the guard whose findings are let through.

    Raises:
        WeightsError: what does not fit, by name.
        ValueError: the environment lacks something that the policy sees.
    """
    semantics, gripper = semantics_of(io)
    there = tuple(key.removeprefix("image.") for key in io.obs if key.startswith("image."))
    wanted = _cameras_of(Path(path))
    # pictures are found by their names: their order and further ones mean nothing
    cameras = wanted if set(wanted) <= set(there) else there
    sizes = {(int(h), int(w)) for h, w, _ in (io.obs[f"image.{name}"][0] for name in cameras)}
    robot = guard.RobotFacts(
        action_names=io.action_names, semantics=semantics, frame="base", gripper=gripper, low=io.bounds[0],
        high=io.bounds[1], cameras=cameras, image_size=sizes.pop() if len(sizes) == 1 else None,
        control_hz=io.control_hz,
    )  # fmt: skip

    def fresh(config: dict[str, Any], meta: PolicyMeta, stats: ActionStats) -> ChunkPolicy:
        return build(Recipe.from_dict(config["recipe"]), io, stats, seed=_FRESH)

    model, _ = guard.load(Path(path), fresh, robot, probe=probe, accept=accept)
    recipe = Recipe.from_dict(json.loads((Path(path) / "config.json").read_text())["recipe"])
    planner = VlaPlanner(io, recipe, device=device)
    planner.model = model.to(device)
    return VlaPlayer(io, planner)
