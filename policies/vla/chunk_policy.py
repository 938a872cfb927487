"""A policy on any backbone: a normal distribution over a chunk of actions, and a value.

The head is small and new; the backbone may be a tiny one of this repository or a pretrained vision-language model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.policies.vla.interface import (
    ActionChunk,
    ActionStats,
    Backbone,
    PolicyMeta,
    VLAObs,
    checked_goal,
    checked_images,
)

_STD = (0.05, 1.0)


class ChunkPolicy(nn.Module):
    """Behind the contract `VLAPolicy`, with codec "gaussian": one log-probability per action of the chunk.

    Args:
        backbone: reads pictures and sentence; its weights are trained with the rest.
        meta: horizon, actions, cameras, state; tokenizer and image size are taken from the backbone.
        stats: between normalised actions and robot units.
        limits: (low, high), each (A,), robot units; actions are cut there.

    Raises:
        ValueError: statistics or limits of another length than the actions.
    """

    def __init__(
        self,
        backbone: Backbone,
        meta: PolicyMeta,
        stats: ActionStats,
        limits: tuple[Sequence[float], Sequence[float]],
    ) -> None:
        super().__init__()
        width = len(meta.action_names)
        for name, length in (("statistics", len(stats.mean)), ("limits", len(limits[0])), ("limits", len(limits[1]))):
            if length != width:
                raise ValueError(f"{name} have {length} entries, expected {width}: one for each action")
        self.backbone, self.stats = backbone, stats
        self.meta = replace(
            meta,
            codec="gaussian",
            logp_layout="step",
            image_size=backbone.image_size,
            norm=stats.norm,
            tokenizer=backbone.fingerprint(),
        )
        self._limits = limits
        inside = backbone.width + meta.state_dim
        self.trunk = nn.Sequential(nn.Linear(inside, 128), nn.GELU())
        self.mean = nn.Linear(128, meta.horizon * width)
        self.log_std = nn.Parameter(torch.full((width,), math.log(0.3)))
        self.critic = nn.Linear(128, 1)

    def act(
        self, obs: VLAObs, goal: Sequence[str], *, generator: torch.Generator, deterministic: bool = False
    ) -> ActionChunk:
        """Draw a chunk for each moment; see `VLAPolicy`."""
        with torch.no_grad():
            mean, std, value = self._heads(obs, goal)
            noise = torch.randn(mean.shape, generator=generator, device=mean.device)
            actions = mean if deterministic else mean + std * noise
            logp = _normal(actions, mean, std).sum(-1)
        low, high = (torch.as_tensor(x, dtype=actions.dtype, device=actions.device) for x in self._limits)
        env_actions = torch.minimum(torch.maximum(self.stats.to_robot(actions), low), high)
        first = obs.step + self.meta.latency_offset
        return ActionChunk(actions, env_actions, logp, value, {"actions": actions}, first)

    def evaluate(self, obs: VLAObs, goal: Sequence[str], trace: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H) log-probabilities, (B, H) entropies, (B,) values of chunks drawn before."""
        mean, std, value = self._heads(obs, goal)
        entropy = (0.5 * math.log(2 * math.pi * math.e) + std.log()).sum(-1).expand(mean.shape[:2])
        return _normal(trace["actions"], mean, std).sum(-1), entropy, value

    def imitation_loss(self, obs: VLAObs, goal: Sequence[str], actions: Tensor) -> Tensor:
        """() minus mean log-probability of actions (B, H, A) in robot units."""
        mean, std, _ = self._heads(obs, goal)
        return -_normal(self.stats.from_robot(actions), mean, std).mean()

    def parameters_by_role(self) -> dict[str, list[nn.Parameter]]:
        """Parameters of "vision", "language", "action" and "value"."""
        action = [*self.trunk.parameters(), *self.mean.parameters(), self.log_std]
        return {**self.backbone.roles(), "action": action, "value": list(self.critic.parameters())}

    def _heads(self, obs: VLAObs, goal: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        missing = [name for name in self.meta.cameras if name not in obs.images]
        if missing:
            raise ValueError(f"pictures of {missing} are missing; the policy looks through {list(self.meta.cameras)}")
        size = self.meta.image_size
        views = [checked_images(obs.images[name], size, name=f"images of '{name}'") for name in self.meta.cameras]
        images = torch.cat(views, dim=1)
        if self.meta.channels == "bgr":
            images = images.flip(-1)
        if self.meta.rotated:
            images = images.flip(2, 3)
        texts = checked_goal(goal, len(images))
        parts = [self.backbone(images, texts)]
        if self.meta.state_dim:
            if obs.state is None or obs.state.shape[1] != self.meta.state_dim:
                found = None if obs.state is None else tuple(obs.state.shape)
                raise ValueError(f"state has shape {found}, expected (B, {self.meta.state_dim})")
            if not torch.isfinite(obs.state).all():
                raise ValueError("state holds NaN or infinity; the model would answer without a word")
            parts.append(obs.state)
        hidden = self.trunk(torch.cat(parts, dim=1))
        mean = self.mean(hidden).view(len(images), self.meta.horizon, len(self.meta.action_names))
        return mean, self.log_std.exp().clamp(*_STD), self.critic(hidden)[:, 0]


def _normal(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return -0.5 * ((x - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)


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
    return VLAObs(images, state, torch.zeros(count, dtype=torch.int64)), goal
