"""FastTD3: twin delayed deterministic policy gradients for many parallel environments, entirely on the device."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from robot_rl.policies.nets.device_critic import DeviceCritic
from robot_rl.policies.nets.device_learner import DeviceLearner
from robot_rl.policies.nets.device_mlp import Tower, frozen, leaves
from robot_rl.policies.nets.device_policy import DevicePolicy
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.types import IOSpec
from robot_rl.types.options import Average, Bins, Count, Mixing, NotNegative, Positive, Rate, Support


class FastTd3(DeviceLearner):
    """TD3 with large batches, distributional critics and mixed exploration noise: a scale for every environment.

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
        activation: "relu", "silu", "elu" or "tanh".
        layer_norm: normalise hidden layers of actor and critics.
        critics: how many.
        reduce: how critics agree: "min" (clipped double Q) or "mean".
        value_head: "c51" or "hlgauss".
        value_range: support of the critics in units of return, or "auto": rewards are divided by a running scale so
            that values fit [-5, 5].
        bins: of the support.
        lr: step size of the critics.
        actor_lr: of the actor; None means `lr`.
        beta2: of Adam.
        weight_decay: of AdamW.
        max_grad_norm: largest norm of a gradient; 0 for no limit.
        tau: Polyak rate per critic step.
        std_min: smallest exploration scale; every environment draws its own, anew in every episode.
        std_max: largest.
        policy_noise: deviation of the noise on the target's action.
        noise_clip: its limit.
        init_scale: deviation of the actor's first output weights.
        normalize_obs: standardise observations with running moments.
        amp: "bf16", "float32" or "auto" (bf16 on CUDA): type of the matrix products; all else is float32.
        accelerate: "eager", "compile", "graph", "compile_graph" or "auto" (compile_graph on CUDA, eager on the CPU).

    Raises:
        ValueError: an option out of its range, or an observation that is no vector.

    Source: Seo et al., FastTD3: Simple, Fast, and Capable Reinforcement Learning for Humanoid Control (2025), with the
    defaults of its code (younggyoseo/FastTD3, hyperparams.py); Fujimoto et al. for TD3. Where we differ: no decay of
    the step sizes, the support can be automatic, the lower neighbour of the projection is capped.
    """

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 32768,
        updates: Count = 2,
        actor_delay: Count = 2,
        actor_hidden: tuple[Count, ...] = (512, 256, 128),
        critic_hidden: tuple[Count, ...] = (1024, 512, 256),
        activation: str = "relu",
        layer_norm: bool = False,
        critics: Count = 2,
        reduce: str = "min",
        value_head: str = "c51",
        value_range: Support | Literal["auto"] = "auto",
        bins: Bins = 101,
        lr: Rate = 3e-4,
        actor_lr: Rate | None = None,
        beta2: Average = 0.999,
        weight_decay: NotNegative = 0.1,
        max_grad_norm: NotNegative = 0.0,
        tau: Mixing = 0.1,
        std_min: NotNegative = 0.001,
        std_max: NotNegative = 0.4,
        policy_noise: NotNegative = 0.001,
        noise_clip: NotNegative = 0.5,
        init_scale: Positive = 0.01,
        normalize_obs: bool = True,
        amp: str = "auto",
        accelerate: str = "auto",
    ) -> None:
        if not 0.0 <= std_min <= std_max or policy_noise < 0 or noise_clip < 0:
            raise ValueError(
                f"std_min {std_min}, std_max {std_max}, policy_noise {policy_noise}, noise_clip {noise_clip}: expected "
                "0 <= std_min <= std_max, the others 0 or more"
            )
        super().__init__(
            "FastTD3",
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
        self._std, self._policy_noise, self._noise_clip = (std_min, std_max), policy_noise, noise_clip
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
        shape = MlpShape(1, self.features, tuple(actor_hidden), io.action_dim, layer_norm, "actor.")
        tower, actor = Tower(shape, activation), FlatParams(shape.shapes(), device=self.device)
        shape.initialise(actor, self.generator)
        tower.small_outputs(actor, self.generator, init_scale)
        self._leaf, self._still = leaves(actor), frozen(actor)
        self._scales: Tensor | None = None  # (N, 1), made when N is known
        policy = DevicePolicy(io, tower, actor, self._rule, seed=seed + 2, normalizer=self.norm)
        self.attach(critic, tower, actor, policy, lr if actor_lr is None else actor_lr)

    def critic_target(self, feature: Tensor, reward: Tensor, discount: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """y = r + discount Z(s', a'), a' the actor's action with clipped noise."""
        smooth = (noise * self._policy_noise).clamp(-self._noise_clip, self._noise_clip)
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
        low, high = self._std
        return torch.rand(count, 1, generator=self._noise, device=self.device) * (high - low) + low

    def _rule(self, raw: Tensor, noise: Tensor | None) -> Tensor:
        """Outside of training every row has the mean of the exploration scales."""
        action = raw.tanh()
        return action if noise is None else action + 0.5 * sum(self._std) * noise

    def state_dict(self) -> dict[str, Any]:
        """See the frame; also the exploration scales."""
        scales = None if self._scales is None else self._scales.clone()
        return {**super().state_dict(), "scales": scales}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        super().load_state_dict(state)
        scales = state["scales"]
        if scales is not None:
            if self._scales is None or len(self._scales) != len(scales):
                self._scales = torch.empty_like(scales, device=self.device)
            self._scales.copy_(scales)
