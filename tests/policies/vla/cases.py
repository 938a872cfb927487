"""Small critics, policies and checkpoints that the tests of this family share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from robot_rl.policies.nets.tiny_backbone import TinyBackbone
from robot_rl.policies.nets.vlm import from_config
from robot_rl.policies.vla.chunk_policy import ChunkPolicy
from robot_rl.policies.vla.guard import RobotFacts, save
from robot_rl.policies.vla.interface import ActionStats, PolicyMeta
from robot_rl.policies.vla.player_parts import probe_obs

NAMES = ("tip_dx", "tip_dy", "tip_dz", "gripper")
LOW, HIGH = (-0.03, -0.03, -0.03, 0.0), (0.03, 0.03, 0.03, 0.08)
CAMERAS = ("front", "top")


def demonstrations(count: int = 400) -> np.ndarray:
    """Actions in robot units."""
    random = np.random.default_rng(0)
    moves = random.normal(0.0, 0.01, (count, 3)).clip(-0.03, 0.03)
    return np.concatenate([moves, random.choice([0.0, 0.08], (count, 1))], axis=1)


def meta(**changes: Any) -> PolicyMeta:
    """Of a policy of the tabletop world with two cameras."""
    plain: dict[str, Any] = {
        "codec": "gaussian", "horizon": 4, "exec_len": 2, "action_names": NAMES,
        "semantics": ("delta", "delta", "delta", "absolute"), "frame": "base", "gripper": (0, 0, 0, 1),
        "cameras": CAMERAS, "image_size": (48, 48), "state_dim": 5, "control_hz": 10.0,
    }  # fmt: skip
    return PolicyMeta(**{**plain, **changes})


def robot(**changes: Any) -> RobotFacts:
    """What the policy of `meta` was trained for."""
    plain: dict[str, Any] = {
        "action_names": NAMES, "semantics": ("delta", "delta", "delta", "absolute"), "frame": "base",
        "gripper": (0, 0, 0, 1), "low": LOW, "high": HIGH, "cameras": CAMERAS, "image_size": (48, 48),
        "control_hz": 10.0, "state_dim": 5, "demonstrations": demonstrations(), "stats_key": "desk",
    }  # fmt: skip
    return RobotFacts(**{**plain, **changes})


def build(config: dict[str, Any], found: PolicyMeta, stats: ActionStats) -> ChunkPolicy:
    """A module with fresh weights from a checkpoint's configuration."""
    torch.manual_seed(123)
    if config["backbone"] == "tiny":
        size = (int(config["size"][0]), int(config["size"][1]))
        backbone: Any = TinyBackbone(size, views=len(found.cameras), words=config.get("words", 509))
    else:
        backbone = from_config(config["backbone"], seed=123)
    return ChunkPolicy(backbone, found, stats, (LOW, HIGH))


def probe(policy: Any) -> np.ndarray:
    """Answers to fixed observations: actions in robot units, log-probabilities, values."""
    obs, goal = probe_obs(policy.meta)
    chunk = policy.act(obs, goal, generator=torch.Generator().manual_seed(0))
    return np.concatenate([x.numpy().ravel() for x in (chunk.env_actions, chunk.logp, chunk.value)])


def trained(config: dict[str, Any], **changes: Any) -> ChunkPolicy:
    """A policy after a few steps of imitation, so that no weight is at its initial value."""
    stats = ActionStats.of(demonstrations(), key="desk")
    policy = build(config, meta(**changes), stats)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    obs, goal = probe_obs(policy.meta)
    actions = torch.as_tensor(demonstrations(16), dtype=torch.float32).view(4, 4, 4)
    for _ in range(2):
        _, _, value = policy.evaluate(obs, goal, {"actions": actions})
        loss = policy.imitation_loss(obs, goal, actions) + (value - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def checkpoint(folder: Path, config: dict[str, Any], **changes: Any) -> Path:
    """A clean checkpoint."""
    policy = trained(config, **changes)
    save(folder, policy, config, probe=probe)
    return folder
