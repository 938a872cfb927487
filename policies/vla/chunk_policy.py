"""A policy on any backbone: a head that draws chunks of actions, and a value.

The head is small and new; the backbone may be a tiny one of this repository or a pretrained vision-language model.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from robot_rl.policies.nets.vla_heads import Guide, make_head
from robot_rl.policies.vla.interface import (
    ActionChunk,
    ActionStats,
    Backbone,
    PolicyMeta,
    VLAObs,
    checked_goal,
    checked_images,
)


class ChunkPolicy(nn.Module):
    """Pictures, state and a sentence in, a chunk of actions out.

    Args:
        backbone: reads pictures and sentence; its weights are trained with the rest.
        meta: horizon, actions, cameras, state; codec, tokenizer and image size are taken from head and backbone.
            Without cameras the backbone reads the sentence alone.
        stats: between normalised actions and robot units.
        limits: (low, high), each (A,), robot units; actions are cut there.
        head: "gaussian", "token" or "flow", see `policies.nets.vla_heads`.
        head_options: of the head.
        trunk: widths of the layers that join the backbone's reading with the state.

    Raises:
        ValueError: statistics or limits of another length than the actions; an unknown head.
    """

    def __init__(
        self,
        backbone: Backbone,
        meta: PolicyMeta,
        stats: ActionStats,
        limits: tuple[Sequence[float], Sequence[float]],
        *,
        head: str = "gaussian",
        head_options: dict[str, object] | None = None,
        trunk: Sequence[int] = (128,),
    ) -> None:
        super().__init__()
        width = len(meta.action_names)
        for name, length in (("statistics", len(stats.mean)), ("limits", len(limits[0])), ("limits", len(limits[1]))):
            if length != width:
                raise ValueError(f"{name} have {length} entries, expected {width}: one for each action")
        self.backbone, self.stats = backbone, stats
        self._limits = limits
        sizes = [backbone.width + meta.state_dim, *trunk]
        layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.GELU())]
        self.trunk = nn.Sequential(*layers)
        self.head = make_head(head, sizes[-1], meta.horizon, width, head_options)
        self.critic = nn.Linear(sizes[-1], 1)
        self.meta = replace(
            meta,
            codec=self.head.codec,
            logp_layout=self.head.layout,
            image_size=backbone.image_size,
            norm=stats.norm,
            tokenizer=backbone.fingerprint(),
        )

    def act(
        self,
        obs: VLAObs,
        goal: Sequence[str],
        *,
        generator: torch.Generator | None,
        deterministic: bool = False,
        prefix: Guide | None = None,
    ) -> ActionChunk:
        """Draw a chunk for each moment.

        Args:
            obs: what is seen.
            goal: sentences.
            generator: of the draws.
            deterministic: the mode.
            prefix: a flow goes on from the running chunk, (B, H, A) normalised, held to it as (B, H) says; its
                log-probabilities are then NaN.
        """
        with torch.no_grad():
            reading = self.read(obs, goal)
            drawn = self.head.sample(reading, generator, deterministic=deterministic, guide=prefix)
            value = self.critic(reading)[:, 0]
        low, high = (torch.as_tensor(x, dtype=value.dtype, device=value.device) for x in self._limits)
        env_actions = torch.minimum(torch.maximum(self.stats.to_robot(drawn.actions), low), high)
        return ActionChunk(drawn.actions, env_actions, drawn.logp, value, drawn.trace)

    def evaluate(self, obs: VLAObs, goal: Sequence[str], trace: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """(B, L) log-probabilities, (B, L) entropies or NaN, (B,) values of chunks drawn before.

        With the same weights it repeats `ActionChunk.logp` to 1e-5.
        """
        reading = self.read(obs, goal)
        logp, entropy = self.head.evaluate(reading, trace)
        return logp, entropy, self.critic(reading)[:, 0]

    def imitation_loss(
        self,
        obs: VLAObs,
        goal: Sequence[str],
        actions: Tensor,
        *,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """() loss of the head on actions (B, H, A) in robot units, where mask (B, H); None = everywhere."""
        mask = torch.ones_like(actions[..., 0], dtype=torch.bool) if mask is None else mask
        return self.head.loss(self.read(obs, goal), self.stats.from_robot(actions), mask, generator)

    def parameters_by_role(self) -> dict[str, list[nn.Parameter]]:
        """Parameters of "vision", "language", "action" and "value"."""
        action = [*self.trunk.parameters(), *self.head.parameters()]
        return {**self.backbone.roles(), "action": action, "value": list(self.critic.parameters())}

    def read(self, obs: VLAObs, goal: Sequence[str]) -> Tensor:
        """(B, W) reading of pictures, sentence and state.

        Raises:
            TypeError: pictures are not uint8.
            ValueError: pictures, sentences or state that do not fit the policy.
        """
        missing = [name for name in self.meta.cameras if name not in obs.images]
        if missing:
            raise ValueError(f"pictures of {missing} are missing; the policy looks through {list(self.meta.cameras)}")
        size = self.meta.image_size
        views = [checked_images(obs.images[name], size, name=f"images of '{name}'") for name in self.meta.cameras]
        images = torch.cat(views, dim=1) if views else torch.zeros(len(goal), 0, *size, 3, dtype=torch.uint8)
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
        return self.trunk(torch.cat(parts, dim=1))
