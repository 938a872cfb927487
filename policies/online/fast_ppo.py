"""PPO for thousands of parallel environments, entirely on the device: short rollouts, few large minibatches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl import parallel
from robot_rl.advantage import rollout_gae
from robot_rl.policies.nets.device_learner import vector_size
from robot_rl.policies.nets.device_mlp import Tower, frozen, leaves
from robot_rl.policies.nets.device_policy import DevicePolicy, restore
from robot_rl.policies.nets.device_step import (
    DeviceMetrics,
    Repeated,
    maybe_compiled,
    resolve_accelerate,
    resolve_amp,
)
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.types import IOSpec, Metrics, Obs, OnPolicyDeviceLearner, Rollout

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8
_LOG_STD = (-5.0, 2.0)
_LR = (1e-5, 1e-2)
_METRICS = ("policy_loss", "value_loss", "kl", "clip_fraction", "lr", "action_std")


class FastPpo(OnPolicyDeviceLearner):
    """PPO whose rollout, advantages and updates are tensors on the device; the step size follows the KL divergence.

    Args:
        io: vectors of floats in, actions out.
        seed: of weights, noise and minibatches.
        device: torch device; with "cuda" steps are compiled and captured.
        gamma: discount per step.
        gae_lambda: weight of longer returns in the advantage.
        rollout_steps: steps T of every environment between updates.
        minibatches: gradients per pass over a rollout.
        epochs: passes over a rollout.
        clip: the probability ratio is clipped to [1 - clip, 1 + clip].
        value_clip: a value may move this far from its old estimate in one update; None means without limit.
        entropy_coef: weight of the entropy bonus.
        value_coef: weight of the squared value error.
        max_grad_norm: largest norm of the gradient of both networks together.
        lr: first step size.
        desired_kl: the step size falls above twice this divergence and rises below half of it; None keeps it fixed.
        log_std_init: first log standard deviation of the action.
        hidden: widths of the hidden layers of actor and critic.
        activation: "elu", "relu", "silu" or "tanh".
        normalize_obs: standardise observations with running moments, updated between rollouts.
        amp: "bf16", "float32" or "auto" (bf16 on CUDA): type of the matrix products; all else is float32.
        accelerate: "eager", "compile", "graph", "compile_graph" or "auto" (compile_graph on CUDA, eager on the CPU).

    Raises:
        ValueError: an option out of its range, or an observation that is no vector.

    Source: Schulman et al., Proximal Policy Optimization Algorithms; Rudin et al., Learning to Walk in Minutes Using
    Massively Parallel Deep RL (defaults, step size by KL). Where we differ: the divergence is estimated from samples
    (Schulman's k3), and truncated episodes bootstrap from their true successor.
    """

    consumes = "device_rollout"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        rollout_steps: int = 24,
        minibatches: int = 4,
        epochs: int = 5,
        clip: float = 0.2,
        value_clip: float | None = 0.2,
        entropy_coef: float = 0.01,
        value_coef: float = 1.0,
        max_grad_norm: float = 1.0,
        lr: float = 1e-3,
        desired_kl: float | None = 0.01,
        log_std_init: float = 0.0,
        hidden: tuple[int, ...] = (512, 256, 128),
        activation: str = "elu",
        normalize_obs: bool = True,
        amp: str = "auto",
        accelerate: str = "auto",
    ) -> None:
        if min(rollout_steps, minibatches, epochs) < 1:
            raise ValueError(
                f"rollout_steps, minibatches and epochs are {rollout_steps}, {minibatches}, {epochs}; expected >= 1"
            )
        self.io, self.device, self.gamma = io, torch.device(device), gamma
        self.rollout_steps, self._gae_lambda = rollout_steps, gae_lambda
        self._minibatches, self._epochs, self._clip, self._value_clip = minibatches, epochs, clip, value_clip
        self._entropy_coef, self._value_coef, self._max_norm = entropy_coef, value_coef, max_grad_norm
        self._desired_kl, self._keys = desired_kl, sorted(io.obs)
        features, rank = vector_size(io), parallel.rank()
        weights = torch.Generator(self.device).manual_seed(seed)  # the same on every process
        self._shuffle = torch.Generator(self.device).manual_seed(seed + 1 + 7919 * rank)
        actor = MlpShape(1, features, tuple(hidden), io.action_dim, False, "actor.")
        critic = MlpShape(1, features, tuple(hidden), 1, False, "critic.")
        self._actor, self._critic = Tower(actor, activation), Tower(critic, activation)
        shapes = {**actor.shapes(), **critic.shapes(), "log_std": (io.action_dim,)}
        self.params = FlatParams(shapes, device=self.device)
        actor.initialise(self.params, weights)
        critic.initialise(self.params, weights)
        self._actor.small_outputs(self.params, weights, 0.01)
        self.params.view["log_std"].fill_(log_std_init)
        self._leaf, self._still = leaves(self.params), frozen(self.params)
        self.lr = torch.full((), lr, device=self.device)
        self.norm = RunningNorm(features, device=self.device) if normalize_obs else None
        self.policy = DevicePolicy(
            io, self._actor, self.params, self._rule, seed=seed + 2 + 7919 * rank, normalizer=self.norm
        )
        self.amp = resolve_amp(amp, self.device)
        compiled, self._graph = resolve_accelerate(accelerate, self.device)
        self._loss = maybe_compiled(self._losses, compiled)
        self.metrics = DeviceMetrics(_METRICS, self.device)
        self._columns: dict[str, Tensor] = {}
        self.updates = 0
        self._latest: Metrics = {}

    @torch.no_grad()
    def explore(self, obs: Obs) -> tuple[Tensor, Tensor, Tensor]:
        """Samples before clipping (N, A), their log-probability (N,) and the values (N,) of the observations."""
        feature = self._feature(obs)
        mean, log_std = self.policy.raw(feature), self._log_std(self._still)
        raw = mean + log_std.exp() * self.policy.noise(len(mean))
        return raw, _logp(raw, mean, log_std), self._value(feature)

    @torch.no_grad()
    def value(self, obs: Obs) -> Tensor:
        """(B,) the critic's estimates."""
        return self._value(self._feature(obs))

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """Take one rollout and improve actor and critic over `epochs` passes, without waiting for the device."""
        rollout = next(batches)
        with torch.no_grad():
            self._take(rollout)
        count = len(self._columns["logp"])
        size = count // self._minibatches
        if size < 1:
            raise ValueError(f"a rollout of {count} rows cannot make {self._minibatches} minibatches; use fewer")
        if getattr(self, "_size", None) != (count, size):
            self._size = (count, size)
            self._rows = torch.zeros(size, dtype=torch.int64, device=self.device)
            self._step = Repeated(self._minibatch, graph=self._graph)
        for _ in range(self._epochs):
            order = torch.randperm(count, generator=self._shuffle, device=self.device)
            for start in range(0, size * self._minibatches, size):
                self._rows.copy_(order[start : start + size])
                self._step()
        if self.norm is not None:
            self.norm.observe(parallel.rows(self._columns["raw_obs"]))
        self.updates += 1
        return dict(self._latest)

    def read_metrics(self) -> Metrics:
        """Means since the last reading; the one place that waits for the device.

        Raises:
            FloatingPointError: a loss is not finite.
        """
        self._latest = self.metrics.read("FastPPO", self.updates)
        return dict(self._latest)

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments, step size, generators, counters: tensors and numbers."""
        return {
            "params": self.params.state_dict(),
            "policy": self.policy.state_dict(),
            "lr": self.lr.clone(),
            "shuffle": self._shuffle.get_state(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        self.params.load_state_dict(state["params"])
        self.policy.load_state_dict(state["policy"])
        self.lr.copy_(state["lr"])
        restore(self._shuffle, state["shuffle"])
        self.updates = int(state["updates"])

    def _take(self, rollout: Rollout) -> None:
        """Advantages, and all columns flat in memory that stays where it is."""
        advantage, target = rollout_gae(
            rollout.reward,
            rollout.value,
            rollout.next_value,
            rollout.terminated,
            rollout.boundary,
            gamma=self.gamma,
            gae_lambda=self._gae_lambda,
            valid=rollout.valid,
        )
        weight = rollout.valid.float()
        sums = torch.stack([weight.sum(), (advantage * weight).sum(), (advantage.square() * weight).sum()]).double()
        count, total, square = parallel.sum_(sums).unbind()
        mean = total / count.clamp_min(1.0)
        std = (square / count.clamp_min(1.0) - mean.square()).clamp_min(0.0).sqrt()
        parts = [rollout.obs[key].flatten(0, 1) for key in self._keys]
        raw_obs = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        made = {
            "raw_obs": raw_obs,
            "obs": raw_obs if self.norm is None else self.norm(raw_obs),
            "action": rollout.action.flatten(0, 1),
            "logp": rollout.logp.flatten(),
            "value": rollout.value.flatten(),
            "target": target.flatten(),
            "advantage": ((advantage - mean) / (std + 1e-8)).float().flatten(),
            "weight": weight.flatten(),
        }
        for name, value in made.items():
            if name not in self._columns or self._columns[name].shape != value.shape:
                self._columns[name] = torch.empty_like(value, memory_format=torch.contiguous_format)
            self._columns[name].copy_(value)

    def _minibatch(self) -> None:
        """One gradient step on the rows `_rows`."""
        names = ("obs", "action", "logp", "value", "target", "advantage", "weight")
        columns = [self._columns[name].index_select(0, self._rows) for name in names]
        loss, policy, value, kl, clipped = self._loss(*columns)
        loss.backward()
        with torch.no_grad():
            if self._desired_kl is not None:
                kl = parallel.mean_(kl)
                slower, faster = kl > 2.0 * self._desired_kl, (kl < 0.5 * self._desired_kl) & (kl > 0.0)
                factor = torch.where(slower, 1.0 / 1.5, torch.where(faster, 1.5, 1.0))
                self.lr.mul_(factor).clamp_(*_LR)
            self._adam()
            self.metrics.add(policy_loss=policy, value_loss=value, kl=kl, clip_fraction=clipped)
            self.metrics.add(lr=self.lr, action_std=self._log_std(self._still).exp().mean())

    def _losses(
        self,
        obs: Tensor,
        action: Tensor,
        old_logp: Tensor,
        old_value: Tensor,
        target: Tensor,
        advantage: Tensor,
        weight: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        with self._autocast():
            mean, value = self._actor(self._leaf, obs)[0].float(), self._critic(self._leaf, obs)[0, :, 0].float()
        log_std = self._log_std(self._leaf)
        log_ratio = (_logp(action, mean, log_std) - old_logp).clamp(-20.0, 20.0)
        ratio = log_ratio.exp()
        bounded = ratio.clamp(1.0 - self._clip, 1.0 + self._clip)
        policy = -(torch.minimum(ratio * advantage, bounded * advantage) * weight).mean()
        error = (value - target).square()
        if self._value_clip is not None:
            near = old_value + (value - old_value).clamp(-self._value_clip, self._value_clip)
            error = torch.maximum(error, (near - target).square())
        value_loss = (error * weight).mean()
        loss = policy + self._value_coef * value_loss - self._entropy_coef * log_std.sum()
        kl = ((torch.expm1(log_ratio) - log_ratio) * weight).mean().detach()
        clipped = ((ratio != bounded).float() * weight).mean()
        return loss, policy.detach(), value_loss.detach(), kl, clipped

    def _adam(self) -> None:
        """Adam with a step size that lives on the device. Source: Kingma and Ba, Adam, algorithm 1."""
        p = self.params
        parallel.mean_(p.grad)
        norm = torch.linalg.vector_norm(p.grad)
        p.grad.mul_((self._max_norm / (norm + 1e-6)).clamp(max=1.0))
        p.step += 1
        p.first.lerp_(p.grad, 1.0 - _BETA1)
        p.second.mul_(_BETA2).addcmul_(p.grad, p.grad, value=1.0 - _BETA2)
        root = (p.second / (1.0 - _BETA2**p.step)).sqrt_().add_(_EPS)
        p.flat.sub_(self.lr / (1.0 - _BETA1**p.step) * p.first / root)
        p.grad.zero_()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.amp, cache_enabled=False)

    def _feature(self, obs: Obs) -> Tensor:
        parts = [obs[key] for key in self._keys]
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return x if self.norm is None else self.norm(x)

    def _value(self, feature: Tensor) -> Tensor:
        return self._critic(self._still, feature)[0, :, 0].float()

    @staticmethod
    def _log_std(view: dict[str, Tensor]) -> Tensor:
        return view["log_std"].clamp(*_LOG_STD)

    def _rule(self, raw: Tensor, noise: Tensor | None) -> Tensor:
        return raw if noise is None else raw + self._log_std(self._still).exp() * noise


def _logp(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """(B,) log density of a diagonal Gaussian."""
    z = (action - mean) * torch.exp(-log_std)
    return (-0.5 * z.square() - log_std - _HALF_LOG_TAU).sum(-1)
