"""PPO for thousands of parallel environments, entirely on the device: short rollouts, few large minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from robot_rl import parallel
from robot_rl.advantage import FusedOptions, fused_policy_loss, use_backend
from robot_rl.policies.nets.actor_critic import backward_from, gaussian_logp
from robot_rl.policies.nets.device_learner import vector_size
from robot_rl.policies.nets.device_mlp import Tower, freeze, leaves
from robot_rl.policies.nets.device_policy import DevicePolicy
from robot_rl.policies.nets.device_step import (
    DeviceMetrics,
    Repeated,
    half_products,
    maybe_compiled,
    resolve_accelerate,
    resolve_amp,
)
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.step_size import limits_of
from robot_rl.policies.nets.surrogate import SurrogateOptions, rollout_credit
from robot_rl.state import Saved
from robot_rl.types import IOSpec, Metrics, Needs, Obs, OnPolicyDeviceLearner, Rollout
from robot_rl.types.options import Count, NotNegative, Number, Positive

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8
_LOG_STD = (-5.0, 2.0)
_COLUMNS = ("obs", "action", "logp", "value", "target", "advantage", "mask")
_METRICS = ("loss", "value_loss", "kl", "clip_fraction", "lr", "action_std")


class FastPpoOptions(SurrogateOptions):
    """Of PPO on a device; numbers of Rudin et al. 2021."""

    rollout_steps: Count = 24
    """Steps T of every environment between updates."""
    minibatches: Count = 4
    """Gradients per pass over a rollout."""
    epochs: Count = 5
    """Passes over a rollout."""
    value_clip: NotNegative | None = 0.2
    """A value may move this far from its old estimate in one update; null for no limit."""
    entropy_coef: NotNegative = 0.01
    """Weight of the entropy bonus."""
    value_coef: NotNegative = 1.0
    """Weight of the squared value error."""
    max_grad_norm: Positive = 1.0
    """Largest norm of the gradient of both networks together."""
    lr: NotNegative = 1e-3
    """First step size."""
    desired_kl: Positive | None = 0.01
    """The step size falls above twice this divergence and rises below half of it; null keeps it fixed."""
    log_std_init: Number = 0.0
    """First log standard deviation of the action."""
    hidden: tuple[Count, ...] = (512, 256, 128)
    """Widths of the hidden layers of actor and critic."""
    activation: Literal["elu", "relu", "silu", "tanh"] = "elu"
    """Of the hidden layers."""
    normalize_obs: bool = True
    """Standardise observations with running moments, updated between rollouts."""
    amp: Literal["auto", "bf16", "float32"] = "auto"
    """Type of the matrix products, all else is float32; auto: bf16 on CUDA."""
    accelerate: Literal["auto", "eager", "compile", "graph", "compile_graph"] = "auto"
    """Compiled and captured steps; auto: compile_graph on CUDA, eager on the CPU."""


class FastPpo(Saved, OnPolicyDeviceLearner[FastPpoOptions, Rollout]):
    """PPO whose rollout, advantages and updates are tensors on the device; the step size follows the KL divergence.

    Args:
        options: of the method.
        io: vectors of floats in, actions out.
        seed: of weights, noise and minibatches.
        device: torch device; with "cuda" steps are compiled and captured.
        gamma: discount per step.

    Raises:
        ValueError: an observation that is no vector.

    Source: Schulman et al., Proximal Policy Optimization Algorithms; Rudin et al., Learning to Walk in Minutes Using
    Massively Parallel Deep RL (defaults, step size by KL). Where we differ: the divergence is estimated from samples
    (Schulman's k3), and truncated episodes bootstrap from their true successor.
    """

    saved = ("params", "policy", "lr", "_shuffle", "updates")

    def __init__(
        self, options: FastPpoOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        super().__init__(options, io, seed=seed, device=device)
        o = options
        self.device, self.gamma, self.rollout_steps = torch.device(device), gamma, o.rollout_steps
        self._loss = FusedOptions(o.clip, None, o.value_clip, o.value_coef, o.entropy_coef, _LOG_STD)
        features, rank = vector_size(io), parallel.rank()
        weights = torch.Generator(self.device).manual_seed(seed)  # the same on every process
        self._shuffle = torch.Generator(self.device).manual_seed(seed + 1 + 7919 * rank)
        actor = MlpShape(1, features, o.hidden, io.action_dim, False, "actor.")
        critic = MlpShape(1, features, o.hidden, 1, False, "critic.")
        self._actor, self._critic = Tower(actor, o.activation), Tower(critic, o.activation)
        shapes = {**actor.shapes(), **critic.shapes(), "log_std": (io.action_dim,)}
        self.params = FlatParams(shapes, device=self.device)
        actor.initialise(self.params, weights)
        critic.initialise(self.params, weights)
        self._actor.small_outputs(self.params, weights, 0.01)
        self.params.view["log_std"].fill_(o.log_std_init)
        self._leaf, self._still = leaves(self.params), freeze(self.params)
        self.lr = torch.full((), o.lr, device=self.device)
        self.norm = RunningNorm(features, device=self.device) if o.normalize_obs else None
        self.policy = DevicePolicy(
            io, self._actor, self.params, self._rule, seed=seed + 2 + 7919 * rank, normalizer=self.norm
        )
        self.amp = resolve_amp(o.amp, self.device)
        compiled, self._graph = resolve_accelerate(o.accelerate, self.device)
        self._outputs = maybe_compiled(self._forward, compiled)
        self.metrics = DeviceMetrics(_METRICS, self.device)
        self._columns: dict[str, Tensor] = {}
        self._size = (0, 0)
        self.updates = 0
        self._latest: Metrics = {}

    @classmethod
    def needs(cls, options: FastPpoOptions, io: IOSpec) -> Needs:
        """Rollouts on the device."""
        return replace(super().needs(options, io), rollout_steps=options.rollout_steps)

    @torch.no_grad()
    def explore(self, obs: Obs) -> tuple[Tensor, Tensor, Tensor]:
        """Samples before clipping (N, A), their log-probability (N,) and the values (N,) of the observations."""
        feature = self.policy.feature(obs)
        mean, log_std = self.policy.raw(feature), self._log_std(self._still)
        raw = mean + log_std.exp() * self.policy.noise(len(mean))
        return raw, gaussian_logp(raw, mean, log_std), self._value(feature)

    @torch.no_grad()
    def value(self, obs: Obs) -> Tensor:
        """(B,) the critic's estimates."""
        return self._value(self.policy.feature(obs))

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """Take one rollout and improve actor and critic over `epochs` passes, without waiting for the device."""
        rollout = next(batches)
        with torch.no_grad():
            self._take(rollout)
        count = len(self._columns["logp"])
        size = count // self.o.minibatches
        if size < 1:
            raise ValueError(f"a rollout of {count} rows cannot make {self.o.minibatches} minibatches; use fewer")
        if self._size != (count, size):
            self._size = (count, size)
            self._rows = torch.zeros(size, dtype=torch.int64, device=self.device)
            self._step = Repeated(self._minibatch, graph=self._graph)
        for _ in range(self.o.epochs):
            order = torch.randperm(count, generator=self._shuffle, device=self.device)
            for start in range(0, size * self.o.minibatches, size):
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

    def after_load(self) -> None:
        """A step size that is fixed is that of the options, which may be another by now."""
        if self.o.desired_kl is None:
            self.lr.fill_(self.o.lr)

    def _take(self, rollout: Rollout) -> None:
        """Advantages, and all columns flat in memory that stays where it is."""
        advantage, target = rollout_credit(rollout, gamma=self.gamma, gae_lambda=self.o.gae_lambda)
        weight = rollout.valid.float()
        sums = torch.stack([weight.sum(), (advantage * weight).sum(), (advantage.square() * weight).sum()]).double()
        count, total, square = parallel.sum_(sums).unbind()
        mean = total / count.clamp_min(1.0)
        std = (square / count.clamp_min(1.0) - mean.square()).clamp_min(0.0).sqrt()
        raw_obs = self.policy.join({key: x.flatten(0, 1) for key, x in rollout.obs.items()})
        made = {
            "raw_obs": raw_obs,
            "obs": raw_obs if self.norm is None else self.norm(raw_obs),
            "action": rollout.action.flatten(0, 1),
            "logp": rollout.logp.flatten(),
            "value": rollout.value.flatten(),
            "target": target.flatten(),
            "advantage": ((advantage - mean) / (std + 1e-8)).float().flatten(),
            "mask": rollout.valid.flatten(),
        }
        for name, value in made.items():
            if name not in self._columns or self._columns[name].shape != value.shape:
                self._columns[name] = torch.empty_like(value, memory_format=torch.contiguous_format)
            self._columns[name].copy_(value)

    def _minibatch(self) -> None:
        """One gradient step on the rows `_rows`."""
        batch = {name: self._columns[name].index_select(0, self._rows) for name in _COLUMNS}
        outputs = self._outputs(batch["obs"])
        with use_backend("torch"):  # on the CPU too: the same operations, and no way through NumPy, as on a GPU
            loss, gradients, log_ratio = fused_policy_loss(outputs, batch, self._loss)
        backward_from(outputs, gradients)
        with torch.no_grad():
            self._follow(loss, log_ratio, outputs["value"].detach(), batch)
            self._adam()
            self.metrics.add(lr=self.lr, action_std=self._log_std(self._still).exp().mean())

    def _follow(self, loss: float | Tensor, log_ratio: Tensor, value: Tensor, batch: dict[str, Tensor]) -> None:
        """Metrics of a minibatch, and the step size by its divergence."""
        o, share = self.o, batch["mask"].float()
        share = share / share.sum().clamp_min(1.0)
        ratio = log_ratio.exp()
        kl = ((torch.expm1(log_ratio) - log_ratio) * share).sum()
        if o.desired_kl is not None:
            kl = parallel.mean_(kl)
            # The first gradient of an update is taken at the policy that acted: its divergence is rounding alone.
            slower, faster = kl > 2.0 * o.desired_kl, (kl < 0.5 * o.desired_kl) & (kl > 1e-8)
            self.lr.mul_(torch.where(slower, 1.0 / 1.5, torch.where(faster, 1.5, 1.0))).clamp_(*limits_of(o.lr))
        error = ((value - batch["target"]).square() * share).sum()
        clipped = (((ratio - 1.0).abs() > o.clip) * share).sum()
        self.metrics.add(loss=torch.as_tensor(loss), value_loss=error, kl=kl, clip_fraction=clipped)

    def _forward(self, obs: Tensor) -> dict[str, Tensor]:
        with half_products(self.device, self.amp):
            mean, value = self._actor(self._leaf, obs)[0].float(), self._critic(self._leaf, obs)[0, :, 0].float()
        return {"mean": mean, "log_std": self._leaf["log_std"], "value": value}

    def _adam(self) -> None:
        """Adam with a step size that lives on the device. Source: Kingma and Ba, Adam, algorithm 1."""
        p = self.params
        parallel.mean_(p.grad)
        norm = torch.linalg.vector_norm(p.grad)
        p.grad.mul_((self.o.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        p.step += 1
        p.first.lerp_(p.grad, 1.0 - _BETA1)
        p.second.mul_(_BETA2).addcmul_(p.grad, p.grad, value=1.0 - _BETA2)
        root = (p.second / (1.0 - _BETA2**p.step)).sqrt_().add_(_EPS)
        p.flat.sub_(self.lr / (1.0 - _BETA1**p.step) * p.first / root)
        p.grad.zero_()

    def _value(self, feature: Tensor) -> Tensor:
        return self._critic(self._still, feature)[0, :, 0].float()

    @staticmethod
    def _log_std(view: dict[str, Tensor]) -> Tensor:
        return view["log_std"].clamp(*_LOG_STD)

    def _rule(self, raw: Tensor, noise: Tensor | None) -> Tensor:
        return raw if noise is None else raw + self._log_std(self._still).exp() * noise
