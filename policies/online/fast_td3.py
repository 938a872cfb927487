"""FastTD3: twin delayed deterministic policy gradients for many parallel environments, entirely on the device."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from robot_rl.policies.nets.device_learner import DeviceLearner, DeviceOptions
from robot_rl.types import IOSpec
from robot_rl.types.options import NotNegative


class FastTd3Options(DeviceOptions):
    """Of FastTD3; numbers of the source's code."""

    weight_decay: NotNegative = 0.1
    """Of AdamW, for all parameters of actor and critics."""
    std_min: NotNegative = 0.001
    """Smallest exploration scale; every environment draws its own, anew in every episode."""
    std_max: Annotated[float, Field(ge=0, validate_default=True)] = 0.4
    """Largest."""
    policy_noise: NotNegative = 0.001
    """Deviation of the noise on the target's action."""
    noise_clip: NotNegative = 0.5
    """Its limit."""
    init_scale: NotNegative = 0.01
    """Deviation of the actor's first output weights."""

    @field_validator("std_max")
    @classmethod
    def check_scales(cls, value: float, info: ValidationInfo) -> float:
        """Refuse an empty range."""
        if info.data.get("std_min", value) > value:
            raise ValueError(f"expected at least std_min ({info.data['std_min']})")
        return value


class FastTd3(DeviceLearner[FastTd3Options]):
    """TD3 with large batches, distributional critics and mixed exploration noise: a scale for every environment.

    Source: Seo et al., FastTD3: Simple, Fast, and Capable Reinforcement Learning for Humanoid Control (2025), with the
    defaults of its code (younggyoseo/FastTD3, hyperparams.py); Fujimoto et al. for TD3. Where we differ: no decay of
    the step sizes, the support can be automatic, the lower neighbour of the projection is capped.
    """

    method = "FastTD3"
    saved = ("updates", "_scales")
    source_rows = 32768

    def __init__(self, options: FastTd3Options, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(options, io, seed=seed, device=device)
        self._scales: Tensor | None = None  # (N, 1), made when N is known
        self.add_actor(io.action_dim, options.init_scale)

    def critic_target(self, feature: Tensor, reward: Tensor, discount: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """y = r + discount Z(s', a'), a' the actor's action with clipped noise."""
        smooth = (noise * self.o.policy_noise).clamp(-self.o.noise_clip, self.o.noise_clip)
        action = (self._tower(self._still, feature)[0].float().tanh() + smooth).clamp(-1.0, 1.0)
        return self.critic.target_distribution(feature, action, reward, discount), reward

    def actor_loss(self, feature: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of -Q(s, actor(s)); there is no entropy to speak of."""
        loss = -self.critic.value(feature, self._tower(self._leaf, feature)[0].float().tanh()).mean()
        return loss, torch.zeros_like(loss)

    def explore_action(self, feature: Tensor, ended: Tensor) -> Tensor:
        """The actor's action with noise of the environment's own scale."""
        if self._scales is None or len(self._scales) != len(feature):
            self._scales = self._draw_scales(len(feature))
        fresh = self._draw_scales(len(feature))
        self._scales.copy_(torch.where(ended[:, None], fresh, self._scales))
        return self.policy.raw(feature).tanh() + self._scales * self.policy.noise(len(feature))

    def _draw_scales(self, count: int) -> Tensor:
        low, high = self.o.std_min, self.o.std_max
        return torch.rand(count, 1, generator=self._noise, device=self.device) * (high - low) + low

    def rule(self, raw: Tensor, noise: Tensor | None) -> Tensor:
        """Outside of training every row has the mean of the exploration scales."""
        action = raw.tanh()
        return action if noise is None else action + 0.5 * (self.o.std_min + self.o.std_max) * noise

    def saved_parts(self) -> dict[str, object]:
        """See the frame; also the exploration scales."""
        return {**super().saved_parts(), "scales": self._scales}

    def after_load(self) -> None:
        """The scales live with the networks."""
        self._scales = None if self._scales is None else self._scales.to(self.device)
