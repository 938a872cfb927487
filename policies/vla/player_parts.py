"""Parts of a policy in a loop: what it is built of, what its actions are, what it sees of an environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets import vlm
from robot_rl.policies.nets.tiny_backbone import TinyBackbone
from robot_rl.policies.vla.chunk_policy import ChunkPolicy
from robot_rl.policies.vla.interface import ActionStats, PolicyMeta, VLAObs
from robot_rl.types import IOSpec, Obs

WORDS = "instruction"


def semantics_of(io: IOSpec) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What the actions of an environment are, by their names and ranges.

    Returns:
        (A,) "delta" (a move: its name ends in _d and an axis, its range is symmetric) or "absolute"; (A,) 1 for a
        gripper whose larger values open, else 0.
    """
    semantics, gripper = [], []
    for name, low, high in zip(io.action_names, *io.bounds):
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
        suffix: words that the policy hears behind every sentence when it acts, such as the mark of good actions.
    """

    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    proprio: tuple[str, ...]
    horizon: int
    exec_len: int
    head: str
    head_options: dict[str, object] = field(default_factory=dict)
    trunk: tuple[int, ...] = (256, 256)
    backbone: dict[str, Any] = field(default_factory=lambda: {"kind": "tiny"})
    suffix: str = ""

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        return json.loads(json.dumps(self.__dict__))

    @classmethod
    def from_dict(cls, plain: Mapping[str, object]) -> Recipe:
        """Inverse of `to_dict`.

        Raises:
            ValueError: entries that are missing or mean nothing.
        """
        found: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in plain.items()}
        try:
            return cls(**found)
        except TypeError as error:
            names = ", ".join(item.name for item in fields(cls))
            raise ValueError(f"a policy's recipe has {', '.join(plain)}, expected {names} ({error})") from error


def build(recipe: Recipe, io: IOSpec, stats: ActionStats, *, seed: int = 0) -> ChunkPolicy:
    """A policy with fresh weights.

    Raises:
        ValueError: an unknown backbone or head, or options that it lacks or does not know.
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
        try:
            if kind == "tiny":
                backbone = TinyBackbone(recipe.image_size, views=len(recipe.cameras), **options)
            elif kind == "transformers":
                backbone = vlm.from_config(options["config"], seed=seed)
            elif kind == "folder":
                backbone = vlm.from_folder(Path(options["path"]))
            else:
                raise ValueError(f"backbone is of kind '{kind}', expected tiny, transformers or folder")
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"backbone is {recipe.backbone}, expected kind=tiny with options of TinyBackbone, kind=transformers "
                f"with config, or kind=folder with path ({error})"
            ) from error
        return ChunkPolicy(
            backbone, meta, stats, io.bounds,
            head=recipe.head, head_options=recipe.head_options, trunk=recipe.trunk,
        )  # fmt: skip


def limit_stats(io: IOSpec, actions: np.ndarray | None = None, *, key: str = "data") -> ActionStats:
    """Statistics whose normalised range is that of the environment's actions.

    Args:
        io: of the environment.
        actions: (n, A) seen ones in [-1, 1]; None = not known yet.
        key: name of the data.
    """
    low, high = (np.array(ends, np.float64) for ends in io.bounds)
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

    def __call__(self, obs: Obs, device: torch.device | str = "cpu") -> tuple[VLAObs, list[str]]:
        """Observations (B, ...) of a loop -> what the policy reads, and B sentences."""
        images = {name: torch.as_tensor(obs[f"image.{name}"], device=device) for name in self.cameras}
        state = None
        if self.columns:
            whole = torch.as_tensor(obs["state"], device=device)
            state = whole[..., self.columns].to(torch.float32)
        words = obs[WORDS]
        letters = words.cpu().numpy() if isinstance(words, Tensor) else np.asarray(words)
        return VLAObs(images, state), [self._text(row) for row in letters]

    def _text(self, row: np.ndarray) -> str:
        raw = row.astype(np.uint8).tobytes().rstrip(b"\0")
        if raw not in self._texts:
            self._texts[raw] = raw.decode("utf-8", errors="replace")
        return self._texts[raw]


def probe_obs(meta: PolicyMeta, count: int = 4, seed: int = 7) -> tuple[VLAObs, list[str]]:
    """Fixed seeded observations and sentences that fit a policy: its answers to them are kept with its weights."""
    random = np.random.default_rng(seed)
    height, width = meta.image_size
    images = {
        name: torch.as_tensor(random.integers(0, 256, (count, height, width, 3)).astype(np.uint8))
        for name in meta.cameras
    }
    state = torch.as_tensor(random.normal(size=(count, meta.state_dim)).astype(np.float32)) if meta.state_dim else None
    texts = ["put the red block on the yellow plate", "open the drawer", "stop", "move left, then up"]
    goal = [texts[i % len(texts)] for i in range(count)]
    return VLAObs(images, state), goal
