"""PPO of a network that gives means, spreads and the value at once: what methods differing in the network share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from robot_rl.advantage import policy_loss
from robot_rl.policies.nets.module_step import ModuleStep
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.rollout_learner import RolloutLearner, RolloutOptions
from robot_rl.policies.nets.surrogate import SurrogateOptions, rollout_credit
from robot_rl.types import IOSpec, Metrics, Obs, Rollout
from robot_rl.types.options import Count, NotNegative, Rate

_LOG_TAU = math.log(2 * math.pi)


def gaussian_logp(action: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(...) log-density of unclipped actions (..., A), summed over the last dimension."""
    return -(0.5 * ((action - mean) / std).square() + std.log() + 0.5 * _LOG_TAU).sum(-1)


def gaussian_sample(mean: Tensor, std: Tensor, generator: torch.Generator, deterministic: bool) -> Tensor:
    """A draw about `mean`, not clipped, or the mean itself."""
    if deterministic:
        return mean
    return mean + std * torch.randn(mean.shape, generator=generator, device=mean.device)


class ModulePpoOptions(RolloutOptions, SurrogateOptions):
    """What these methods may be told."""

    rollout_steps: Count = 40
    """Steps of every environment per update."""
    epochs: Count = 5
    """Passes over a rollout."""
    minibatch: Count = 320
    """Rows of one gradient."""
    entropy_weight: NotNegative = 0.0
    """Of an entropy bonus."""
    value_weight: NotNegative = 0.5
    """Of the value's loss."""
    lr: Rate = 2e-3
    """Step size (AdamW without decay)."""
    grad_clip: NotNegative = 0.5
    """Bound of the gradient's norm; 0 for none."""


M = TypeVar("M", bound=ModulePpoOptions)


class ModulePpo(RolloutLearner[M]):
    """The learner; a method names its network, its policy and how a row is cut.

    A method states its network and what acts with it in `build`. The value is learnt in units of the returns' running
    moments, because trunk and gradient bound are shared with the policy.
    """

    method = "PPO"

    def __init__(self, options: M, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99) -> None:
        """Build for `io`.

        Args:
            options: of the method.
            io: what the world shows and takes.
            seed: of weights, samples and minibatches.
            device: torch device.
            gamma: discount per step.

        Raises:
            ValueError: a world that the network cannot read.
        """
        super().__init__(options, io, seed=seed, device=device)
        self.gamma = gamma
        self.net, self.policy = self.build()
        self.net_step = ModuleStep(self.net, lr=options.lr, clip=options.grad_clip)
        self.moments = RunningNorm(1, max_scale=1e6, device=device)
        self.state.include({"net": self.net_step, "policy": self.policy, "moments": self.moments})

    def build(self) -> tuple[nn.Module, Any]:
        """The network, (B, ...) -> means (B, ...), standard deviations (A,), values (B,), and what acts with it."""
        raise NotImplementedError(f"{type(self).__name__}.build is missing")

    def _cut(self, x: Tensor) -> Tensor:
        """(..., D) as the network reads and gives it: as it is, unless a method says otherwise."""
        return x

    def _old_logp(self, rollout: Rollout) -> Tensor:
        """(T, N, ...) log-densities when the actions were drawn."""
        return rollout.logp

    @torch.no_grad()
    def value(self, obs: Obs) -> Tensor:
        """(B,) the value."""
        state = torch.as_tensor(obs["state"]).to(self.generator.device, torch.float32)
        return self.net(self._cut(state))[2] / self.moments.scale + self.moments.shift

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """`epochs` passes over one rollout.

        Returns:
            The latest metrics: train/policy_loss, train/value_loss, train/entropy (of one row of means),
            train/ratio_off (share of ratios outside the clip), train/value (in units of the returns' moments).

        Raises:
            FloatingPointError: a metric is not finite.
        """
        o, rollout = self.o, next(batches)
        advantage, target = rollout_credit(rollout, gamma=self.gamma, gae_lambda=o.gae_lambda)
        keep = rollout.valid.flatten()
        state = self._cut(rollout.obs["state"]).flatten(0, 1)[keep]
        action, old = self._cut(rollout.action).flatten(0, 1)[keep], self._old_logp(rollout).flatten(0, 1)[keep]
        advantage, target = advantage.flatten()[keep], target.flatten()[keep]
        self.moments.observe(target[:, None])
        target = self.moments(target[:, None])[:, 0]
        advantage = (advantage - advantage.mean()) / advantage.std(correction=0).clamp_min(1e-8)
        found: dict[str, Tensor] = {}
        for _ in range(o.epochs):
            order = torch.randperm(len(state), generator=self.generator, device=state.device)
            for part in order.split(o.minibatch):
                found = self._fit(state[part], action[part], old[part], advantage[part], target[part])
        return self.metrics(**found)

    def _ratio_logp(self, logp: Tensor) -> Tensor:
        """Log-densities whose differences are clipped."""
        return logp

    def _fit(self, state: Tensor, action: Tensor, old: Tensor, advantage: Tensor, target: Tensor) -> dict[str, Tensor]:
        o = self.o
        mean, std, value = self.net(state)
        logp, old = self._ratio_logp(gaussian_logp(action, mean, std)), self._ratio_logp(old)
        spread = advantage if logp.dim() == 1 else advantage[:, None].expand_as(logp)
        actor = policy_loss(logp, old, spread, clip=o.clip)
        error = (value - target).square().mean()
        entropy = (std.log() + 0.5 * (1 + _LOG_TAU)).sum()
        self.net_step(actor + o.value_weight * error - o.entropy_weight * entropy)
        outside = ((logp - old).exp() - 1.0).abs() > o.clip
        return {
            "policy_loss": actor, "value_loss": error, "entropy": entropy, "ratio_off": outside.float(), "value": value,
        }  # fmt: skip
