"""FastSAC: soft actor-critic for thousands of parallel environments, entirely on the device."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from robot_rl.policies.nets.device_critic import descend
from robot_rl.policies.nets.device_learner import DeviceLearner, DeviceOptions
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.types import IOSpec
from robot_rl.types.options import Count, Mixing, NotNegative, Number, Positive

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)


class FastSacOptions(DeviceOptions):
    """Of FastSAC; numbers of the source's code."""

    updates: Count = 8
    """Critic steps per step of all environments."""
    actor_delay: Count = 4
    """The actor learns in every n-th critic step."""
    critic_hidden: tuple[Count, ...] = (768, 384, 192)
    """Widths of the critics' hidden layers."""
    activation: Literal["relu", "silu", "elu", "tanh"] = "silu"
    """Of the hidden layers of actor and critics."""
    layer_norm: bool = True
    """Normalise hidden layers of actor and critics."""
    reduce: Literal["min", "mean"] = "mean"
    """How critics agree on a value."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Of AdamW."""
    weight_decay: NotNegative = 0.001
    """Of AdamW, for all parameters of actor and critics."""
    tau: Mixing = 0.125
    """Polyak rate per critic step."""
    alpha_lr: NotNegative | None = None
    """Step size of the temperature; null means lr, 0 keeps it fixed."""
    init_alpha: Positive = 0.001
    """Temperature at the start."""
    target_entropy: Number | Literal["auto"] = 0.0
    """Entropy that the temperature holds; auto: -A."""
    log_std_min: Number = -5.0
    """Lower limit of the log standard deviation, before the squashing."""
    log_std_max: Annotated[Number, Field(validate_default=True)] = 0.0
    """Upper limit."""

    @field_validator("log_std_max")
    @classmethod
    def check_log_std(cls, value: float, info: ValidationInfo) -> float:
        """Refuse an empty range."""
        if not info.data.get("log_std_min", value - 1.0) < value:
            raise ValueError(f"expected more than log_std_min ({info.data['log_std_min']})")
        return value


class FastSac(DeviceLearner[FastSacOptions]):
    """SAC with large batches, distributional critics without a minimum, and few, large steps per environment step.

    Source: Seo et al., Learning Sim-to-Real Humanoid Locomotion in 15 Minutes (2025), with the defaults of its code
    (amazon-far/holosoma, FastSACConfig); Haarnoja et al. for SAC. Where we differ: twin target distributions are
    averaged after one projection, and the support can be automatic.
    """

    method = "FastSAC"
    source_rows = 8192

    def __init__(self, options: FastSacOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(options, io, seed=seed, device=device)
        o = options
        self._entropy = -float(io.action_dim) if isinstance(o.target_entropy, str) else o.target_entropy
        self._alpha_lr = o.lr if o.alpha_lr is None else o.alpha_lr
        self.add_actor(2 * io.action_dim, 0.01)
        self._log_alpha = FlatParams({"log_alpha": (1,)}, device=self.device)
        self._log_alpha.view["log_alpha"].fill_(math.log(o.init_alpha))
        self._parts["alpha"] = self._log_alpha

    @property
    def alpha(self) -> Tensor:
        """() the temperature, on the device."""
        return self._log_alpha.view["log_alpha"][0].exp()

    def critic_target(self, feature: Tensor, reward: Tensor, discount: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """y = r + discount (Z(s', a') - alpha log pi(a'|s')), a' from the actor; and log pi (B,)."""
        action, logp = self._sample(self._tower(self._still, feature)[0].float(), noise)
        cost = self.alpha * logp
        return self.critic.target_distribution(feature, action, reward, discount, cost), logp

    @torch.no_grad()
    def after_critic(self, known: Tensor) -> None:
        """The temperature moves in every step: loss -log_alpha (log pi + target entropy), on the samples at s'."""
        self.metrics.add(alpha=self.alpha)
        if self._alpha_lr:
            self._log_alpha.grad_view["log_alpha"].copy_(-(known.mean() + self._entropy)[None])
            descend(self._log_alpha, self._alpha_lr, self.o, weight_decay=0.0)

    def actor_loss(self, feature: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of alpha log pi(a|s) - Q(s, a)."""
        action, logp = self._sample(self._tower(self._leaf, feature)[0].float(), noise)
        cost = self.alpha.detach() * logp
        return (cost - self.critic.value(feature, action)).mean(), -logp.detach().mean()

    def explore_action(self, feature: Tensor, ended: Tensor) -> Tensor:
        """A sample of the policy."""
        return self.rule(self.policy.raw(feature), self.policy.noise(len(feature)))

    def _split(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation; the latter squashed smoothly into its limits."""
        mean, wide = raw.chunk(2, dim=-1)
        low, high = self.o.log_std_min, self.o.log_std_max
        return mean, low + 0.5 * (high - low) * (wide.tanh() + 1.0)

    def _sample(self, raw: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """tanh(mean + std noise) (B, A) and its exact log-density (B,).

        log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)). Source: Haarnoja et al., appendix C.
        """
        mean, log_std = self._split(raw)
        u = mean + log_std.exp() * noise
        inner = -0.5 * noise.square() - log_std - _HALF_LOG_TAU
        squash = 2.0 * (_LOG_2 - u - torch.nn.functional.softplus(-2.0 * u))
        return u.tanh(), (inner - squash).sum(-1)

    def rule(self, raw: Tensor, noise: Tensor | None) -> Tensor:
        """tanh of a sample, or of the mean."""
        mean, log_std = self._split(raw)
        return mean.tanh() if noise is None else (mean + log_std.exp() * noise).tanh()
