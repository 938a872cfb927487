"""A vision-language-action policy in a loop: what it sees of an environment, what it is built of, how it is played."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan, guidance_weights
from robot_rl.policies.vla import guard
from robot_rl.policies.vla.chunk_policy import ChunkPolicy, probe_obs
from robot_rl.policies.vla.heads import Guide
from robot_rl.policies.vla.interface import ActionStats, PolicyMeta, VLAObs
from robot_rl.policies.vla.tiny_backbone import TinyBackbone
from robot_rl.types import IOSpec, Obs

WORDS = "instruction"


def semantics_of(io: IOSpec) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What the actions of an environment are, by their names and ranges.

    Returns:
        (A,) "delta" (a move: its name ends in _d and an axis, its range is symmetric) or "absolute"; (A,) 1 for a
        gripper whose larger values open, else 0.
    """
    semantics, gripper = [], []
    for name, low, high in zip(io.action_names, io.action_low, io.action_high):
        last = name.rsplit("_", 1)[-1]
        move = last.startswith("d") and len(last) > 1 and np.isclose(low, -high)
        semantics.append("delta" if move else "absolute")
        gripper.append(int("gripper" in name and "opening" in name))
    return tuple(semantics), tuple(gripper)


def idle_action(io: IOSpec) -> np.ndarray:
    """(A,) what a robot does that has nothing to do: no move, and positions held (NaN)."""
    return np.array([0.0 if kind == "delta" else np.nan for kind in semantics_of(io)[0]], np.float32)


@dataclass(frozen=True)
class Recipe:
    """What a policy is built of; plain values, kept with its weights.

    Attributes:
        cameras: names of the pictures, in order; none is a policy that reads state and sentence alone.
        image_size: (height, width), pixels.
        proprio: names of the components of "state" that it sees.
        horizon: H.
        exec_len: actions executed before the next decision.
        head: "gaussian", "token" or "flow".
        head_options: of the head.
        trunk: widths of the layers behind the backbone.
        backbone: {"kind": "tiny", ...options of TinyBackbone}, {"kind": "transformers", "config": {...}} (random
            weights) or {"kind": "folder", "path": ...} (a model on this machine).
    """

    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    proprio: tuple[str, ...]
    horizon: int
    exec_len: int
    head: str
    head_options: dict[str, Any] = field(default_factory=dict)
    trunk: tuple[int, ...] = (256, 256)
    backbone: dict[str, Any] = field(default_factory=lambda: {"kind": "tiny"})

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return json.loads(json.dumps(self.__dict__))

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Recipe:
        """Inverse of `to_dict`."""
        return cls(**{key: tuple(x) if isinstance(x, list) else x for key, x in plain.items()})


def build(recipe: Recipe, io: IOSpec, stats: ActionStats, *, seed: int = 0) -> ChunkPolicy:
    """A policy with fresh weights.

    Raises:
        ValueError: an unknown backbone or head.
    """
    semantics, gripper = semantics_of(io)
    meta = PolicyMeta(
        codec=recipe.head,
        horizon=recipe.horizon,
        exec_len=recipe.exec_len,
        action_names=io.action_names,
        semantics=semantics,
        frame="base",
        gripper=gripper,
        cameras=recipe.cameras,
        image_size=recipe.image_size,
        state_dim=len(recipe.proprio),
        control_hz=io.control_hz,
    )
    options = {key: x for key, x in recipe.backbone.items() if key != "kind"}
    kind = recipe.backbone.get("kind")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "tiny":
            backbone: Any = TinyBackbone(recipe.image_size, views=len(recipe.cameras), **options)
        elif kind == "transformers":
            from robot_rl.policies.vla import vlm  # an optional extra

            backbone = vlm.from_config(options["config"], seed=seed)
        elif kind == "folder":
            from robot_rl.policies.vla import vlm

            backbone = vlm.from_folder(Path(options["path"]))
        else:
            raise ValueError(f"backbone is of kind '{kind}', expected tiny, transformers or folder")
        return ChunkPolicy(
            backbone, meta, stats, (io.action_low, io.action_high),
            head=recipe.head, head_options=recipe.head_options, trunk=recipe.trunk,
        )  # fmt: skip


def limit_stats(io: IOSpec, actions: np.ndarray | None = None, *, key: str = "data") -> ActionStats:
    """Statistics whose normalised range is that of the environment's actions.

    Args:
        io: of the environment.
        actions: (n, A) seen ones in [-1, 1]; None = not known yet.
        key: name of the data.
    """
    low, high = np.array(io.action_low, np.float64), np.array(io.action_high, np.float64)
    seen = np.array([[-1.0] * len(low), [1.0] * len(low)]) if actions is None else np.asarray(actions, np.float64)
    found = ActionStats.of(low + (seen + 1.0) * 0.5 * (high - low), norm="min_max", key=key)
    return ActionStats("min_max", key, found.mean, found.std, found.q01, found.q99, low, high, found.mask)


class Sight:
    """What a policy sees of an environment's observations.

    Args:
        io: of the environment.
        cameras: names of the pictures.
        proprio: names of the components of "state"; a name that ends in * means all that begin so.

    Raises:
        ValueError: the environment lacks a picture, a component or the sentence.
    """

    def __init__(self, io: IOSpec, cameras: Sequence[str], proprio: Sequence[str]) -> None:
        if WORDS not in io.obs:
            raise ValueError(
                f"the environment says no '{WORDS}', and this policy acts on a sentence; for env=tabletop add "
                "env.world.sentences=train"
            )
        there = [key.removeprefix("image.") for key in io.obs if key.startswith("image.")]
        missing = [name for name in cameras if name not in there]
        if missing:
            raise ValueError(f"the environment has no pictures of {missing}; it has {there}: add env.cameras=[...]")
        names = list(io.obs_names)
        columns: list[int] = []
        for name in proprio:
            found = [i for i, x in enumerate(names) if x == name or (name[-1] == "*" and x.startswith(name[:-1]))]
            if not found:
                raise ValueError(f"the state has no component '{name}'; its components are {', '.join(names)}")
            columns += found
        self.cameras, self.columns = tuple(cameras), columns
        self.proprio = tuple(names[i] for i in columns)
        self._texts: dict[bytes, str] = {}

    def __call__(self, obs: Obs, device: Any = "cpu") -> tuple[VLAObs, list[str]]:
        """Observations (B, ...) of a loop -> what the policy reads, and B sentences."""
        images = {name: torch.as_tensor(obs[f"image.{name}"], device=device) for name in self.cameras}
        state = None
        if self.columns:
            whole = torch.as_tensor(obs["state"], device=device)
            state = whole[..., self.columns].to(torch.float32)
        words = obs[WORDS]
        letters = words.cpu().numpy() if isinstance(words, Tensor) else np.asarray(words)
        step = torch.zeros(len(letters), dtype=torch.int64, device=device)
        return VLAObs(images, state, step), [self._text(row) for row in letters]

    def _text(self, row: np.ndarray) -> str:
        raw = row.astype(np.uint8).tobytes().rstrip(b"\0")
        if raw not in self._texts:
            self._texts[raw] = raw.decode("utf-8", errors="replace")
        return self._texts[raw]


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
        prefix = self._prefix(context) if "delay" in context and self.recipe.head == "flow" else None
        chunk = self.model.act(seen, goal, generator=self._draw, deterministic=deterministic, prefix=prefix)
        return Plan(self.to_env(chunk.env_actions))

    @property
    def draws(self) -> Tensor:
        """State of the generator of the draws."""
        return self._draw.get_state()

    @draws.setter
    def draws(self, state: Tensor) -> None:
        self._draw.set_state(torch.as_tensor(state).cpu())

    def to_env(self, robot: Tensor) -> Tensor:
        """(..., A) robot units -> the environment's [-1, 1]."""
        low, high = (robot.new_tensor(x) for x in (self.io.action_low, self.io.action_high))
        return (robot - low) / (high - low) * 2.0 - 1.0

    def to_robot(self, action: Tensor) -> Tensor:
        """Inverse of `to_env`."""
        low, high = (action.new_tensor(x) for x in (self.io.action_low, self.io.action_high))
        return low + (action + 1.0) * 0.5 * (high - low)

    def _prefix(self, context: dict[str, np.ndarray]) -> Guide:
        h, running = self.recipe.horizon, torch.as_tensor(context["running"], device=self.device)
        previous = torch.as_tensor(context["previous"], dtype=torch.float32, device=self.device)
        delay = int(np.max(context["delay"], initial=0))
        weight = guidance_weights(delay, max(h - self.recipe.exec_len, delay), h).to(previous)
        return self.model.stats.from_robot(self.to_robot(previous)), weight * running.to(previous.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Weights, statistics and the recipe as its bytes."""
        raw = json.dumps(self.recipe.to_dict(), sort_keys=True).encode()
        stats = self.model.stats
        names = ("mean", "std", "q01", "q99", "low", "high", "mask")
        return {
            "recipe": torch.tensor(list(raw), dtype=torch.uint8),
            "key": torch.tensor(list(stats.key.encode()), dtype=torch.uint8),
            **{f"stats.{name}": torch.as_tensor(np.array(getattr(stats, name))) for name in names},
            **{f"model.{name}": x.detach().clone() for name, x in self.model.state_dict().items()},
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
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

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Weights, and with them the lengths of the chunks."""
        self.planner.load_state_dict(state)
        self.execution = _execution(self.io, self.planner.recipe)
        self.reset()


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
        CheckpointError: what does not fit, by name.
        ValueError: the environment lacks something that the policy sees.
    """
    semantics, gripper = semantics_of(io)
    cameras = tuple(key.removeprefix("image.") for key in io.obs if key.startswith("image."))
    sizes = {io.obs[f"image.{name}"][0][:2] for name in cameras}
    robot = guard.Robot(
        action_names=io.action_names, semantics=semantics, frame="base", gripper=gripper, low=io.action_low,
        high=io.action_high, cameras=cameras or None, image_size=sizes.pop() if len(sizes) == 1 else None,
        control_hz=io.control_hz,
    )  # fmt: skip

    def fresh(config: dict[str, Any], meta: PolicyMeta, stats: ActionStats) -> ChunkPolicy:
        return build(Recipe.from_dict(config["recipe"]), io, stats, seed=1)

    model, _ = guard.load(Path(path), fresh, robot, probe=probe, accept=accept)
    recipe = Recipe.from_dict(json.loads((Path(path) / "config.json").read_text())["recipe"])
    planner = VlaPlanner(io, recipe, device=device)
    planner.model = model.to(device)
    return VlaPlayer(io, planner)
