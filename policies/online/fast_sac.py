"""FastSAC: soft actor-critic for thousands of parallel environments, entirely on the device."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from robot_rl.policies.nets.device_critic import DeviceCritic, descend
from robot_rl.policies.nets.device_learner import DeviceLearner
from robot_rl.policies.nets.device_mlp import Tower, frozen, leaves
from robot_rl.policies.nets.device_policy import DevicePolicy
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.types import IOSpec
from robot_rl.types.options import Average, Bins, Count, Mixing, NotNegative, Number, Positive, Rate, Support

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)


class FastSac(DeviceLearner):
    """SAC with large batches, distributional critics without a minimum, and few, large steps per environment step.

    Args:
        io: vectors of floats in, actions out.
        seed: of weights, noise and sampling.
        device: torch device; with "cuda" steps are compiled and captured.
        gamma: part of every learner's signature; the data's `discount` is what is used.
        batch_size: rows per critic step, over all processes.
        updates: critic steps per step of all environments.
        actor_delay: the actor learns in every n-th critic step.
        actor_hidden: widths of the actor's hidden layers.
        critic_hidden: widths of the critics' hidden layers.
        activation: "silu", "relu", "elu" or "tanh".
        layer_norm: normalise hidden layers of actor and critics.
        critics: how many.
        reduce: how critics agree: "mean" or "min".
        value_head: "c51" or "hlgauss".
        value_range: support of the critics in units of return, or "auto": rewards are divided by a running scale so
            that values fit [-5, 5].
        bins: of the support.
        lr: step size of the critics.
        actor_lr: of the actor; None means `lr`.
        alpha_lr: of the temperature; None means `lr`, 0 keeps it fixed.
        beta2: of Adam.
        weight_decay: of AdamW.
        max_grad_norm: largest norm of a gradient; 0 for no limit.
        tau: Polyak rate per critic step.
        init_alpha: temperature at the start.
        target_entropy: entropy that the temperature holds, a number or "auto" (-A).
        log_std_min: lower limit of the log standard deviation before the squashing.
        log_std_max: upper limit.
        normalize_obs: standardise observations with running moments.
        amp: "bf16", "float32" or "auto" (bf16 on CUDA): type of the matrix products; all else is float32.
        accelerate: "eager", "compile", "graph", "compile_graph" or "auto" (compile_graph on CUDA, eager on the CPU).

    Raises:
        ValueError: an option out of its range, or an observation that is no vector.

    Source: Seo et al., Learning Sim-to-Real Humanoid Locomotion in 15 Minutes (2025), with the defaults of its code
    (amazon-far/holosoma, FastSACConfig); Haarnoja et al. for SAC. Where we differ: twin target distributions are
    averaged after one projection, and the support can be automatic.
    """

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 8192,
        updates: Count = 8,
        actor_delay: Count = 4,
        actor_hidden: tuple[Count, ...] = (512, 256, 128),
        critic_hidden: tuple[Count, ...] = (768, 384, 192),
        activation: str = "silu",
        layer_norm: bool = True,
        critics: Count = 2,
        reduce: str = "mean",
        value_head: str = "c51",
        value_range: Support | Literal["auto"] = "auto",
        bins: Bins = 101,
        lr: Rate = 3e-4,
        actor_lr: Rate | None = None,
        alpha_lr: Average | None = None,
        beta2: Average = 0.95,
        weight_decay: NotNegative = 0.001,
        max_grad_norm: NotNegative = 0.0,
        tau: Mixing = 0.125,
        init_alpha: Positive = 0.001,
        target_entropy: Number | Literal["auto"] = 0.0,
        log_std_min: Number = -5.0,
        log_std_max: Number = 0.0,
        normalize_obs: bool = True,
        amp: str = "auto",
        accelerate: str = "auto",
    ) -> None:
        if isinstance(target_entropy, str) and target_entropy != "auto":
            raise ValueError(f"target_entropy is '{target_entropy}', expected a number or 'auto'")
        if not log_std_min < log_std_max or init_alpha <= 0:
            raise ValueError(
                f"log_std_min {log_std_min}, log_std_max {log_std_max}, init_alpha {init_alpha}: expected "
                "log_std_min < log_std_max and init_alpha > 0"
            )
        super().__init__(
            "FastSAC",
            io,
            seed=seed,
            device=device,
            batch_size=batch_size,
            updates=updates,
            actor_delay=actor_delay,
            tau=tau,
            critic_lr=lr,
            beta2=beta2,
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm,
            value_range=value_range,
            normalize_obs=normalize_obs,
            amp=amp,
            accelerate=accelerate,
        )
        self._log_std = (log_std_min, log_std_max)
        self._entropy = -float(io.action_dim) if isinstance(target_entropy, str) else float(target_entropy)
        self._alpha_lr, self._beta2 = lr if alpha_lr is None else alpha_lr, beta2
        critic = DeviceCritic(
            self.features,
            io.action_dim,
            tuple(critic_hidden),
            generator=self.generator,
            members=critics,
            activation=activation,
            layer_norm=layer_norm,
            head=value_head,
            bins=bins,
            low=self.low,
            high=self.high,
            reduce=reduce,
        )
        shape = MlpShape(1, self.features, tuple(actor_hidden), 2 * io.action_dim, layer_norm, "actor.")
        tower, actor = Tower(shape, activation), FlatParams(shape.shapes(), device=self.device)
        shape.initialise(actor, self.generator)
        tower.small_outputs(actor, self.generator, 0.01)
        self._leaf, self._still = leaves(actor), frozen(actor)
        self._log_alpha = FlatParams({"log_alpha": (1,)}, device=self.device)
        self._log_alpha.view["log_alpha"].fill_(math.log(init_alpha))
        self._parts["alpha"] = self._log_alpha
        policy = DevicePolicy(io, tower, actor, self._rule, seed=seed + 2, normalizer=self.norm)
        self.attach(critic, tower, actor, policy, lr if actor_lr is None else actor_lr)

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
            descend(self._log_alpha, lr=self._alpha_lr, beta2=self._beta2, weight_decay=0.0, max_grad_norm=0.0)

    def actor_loss(self, feature: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of alpha log pi(a|s) - Q(s, a)."""
        action, logp = self._sample(self._tower(self._leaf, feature)[0].float(), noise)
        cost = self.alpha.detach() * logp
        return (cost - self.critic.value(feature, action)).mean(), -logp.detach().mean()

    def explore_action(self, feature: Tensor, ended: Tensor) -> Tensor:
        """A sample of the policy."""
        return self._rule(self.policy.raw(feature), self.policy.noise(len(feature)))

    def _split(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation; the latter squashed smoothly into its limits."""
        mean, wide = raw.chunk(2, dim=-1)
        low, high = self._log_std
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

    def _rule(self, raw: Tensor, noise: Tensor | None) -> Tensor:
        mean, log_std = self._split(raw)
        return mean.tanh() if noise is None else (mean + log_std.exp() * noise).tanh()
