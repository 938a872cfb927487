"""PPO of a network that gives means, spreads and the value at once: what methods differing in the network share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robot_rl.advantage import policy_loss, rollout_gae
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.module_step import ModuleStep
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.types import IOSpec, Metrics, Obs, OnPolicyLearner, Rollout

_LOG_TAU = math.log(2 * math.pi)


def gaussian_logp(action: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(...) log-density of unclipped actions (..., A), summed over the last dimension."""
    return -(0.5 * ((action - mean) / std).square() + std.log() + 0.5 * _LOG_TAU).sum(-1)


def gaussian_sample(mean: Tensor, std: Tensor, generator: torch.Generator, deterministic: bool) -> Tensor:
    """A draw about `mean`, not clipped, or the mean itself."""
    if deterministic:
        return mean
    return mean + std * torch.randn(mean.shape, generator=generator, device=mean.device)


@dataclass(frozen=True)
class UpdateOptions:
    """Numbers of an update.

    Attributes:
        gamma: discount per step.
        rollout_steps: steps of every environment per update.
        epochs: passes over a rollout.
        minibatch: rows of one gradient.
        clip: width of the ratio's clip.
        gae_lambda: of the advantages.
        entropy_weight: of an entropy bonus.
        value_weight: of the value's loss.
        lr: step size (AdamW without decay).
        grad_clip: bound of the gradient's norm.
        metrics_every: metrics are computed in every n-th update.
    """

    gamma: float
    rollout_steps: int
    epochs: int
    minibatch: int
    clip: float
    gae_lambda: float
    entropy_weight: float
    value_weight: float
    lr: float
    grad_clip: float
    metrics_every: int

    def __post_init__(self) -> None:
        if min(self.rollout_steps, self.epochs, self.minibatch) < 1:
            raise ValueError(
                f"rollout_steps, epochs, minibatch are {self.rollout_steps}, {self.epochs}, {self.minibatch}; expected "
                "at least 1 each"
            )


class ModulePpo(OnPolicyLearner):
    """The learner; a method names its network, its policy and how a row is cut.

    The value is learnt in units of the returns' running moments, because trunk and gradient bound are shared with the
    policy.
    """

    consumes = "rollout"
    method = "PPO"

    def __init__(
        self, io: IOSpec, net: nn.Module, policy: Any, options: UpdateOptions, generator: torch.Generator
    ) -> None:
        """Bind.

        Args:
            io: what the world shows and takes.
            net: rows (B, ...) -> means (B, ...), standard deviations (A,), values (B,).
            policy: what acts with `net`.
            options: see there.
            generator: of minibatches.
        """
        self.io, self.net, self.policy, self._options = io, net, policy, options
        self.rollout_steps, self._generator = options.rollout_steps, generator
        self._step = ModuleStep(net, lr=options.lr, clip=options.grad_clip)
        self.moments = RunningNorm(1, max_scale=1e6, device=generator.device)
        self._state = LearnerState(
            self.method,
            metrics_every=options.metrics_every,
            parts={"net": self._step, "policy": policy, "moments": self.moments, "generator": generator},
        )

    def _cut(self, x: Tensor) -> Tensor:
        """(..., D) as the network reads and gives it: as it is, unless a method says otherwise."""
        return x

    def _old_logp(self, rollout: Rollout) -> Tensor:
        """(T, N, ...) log-densities when the actions were drawn."""
        return rollout.logp

    @torch.no_grad()
    def value(self, obs: Obs) -> Tensor:
        """(B,) the value."""
        state = torch.as_tensor(obs["state"]).to(self._generator.device, torch.float32)
        return self.net(self._cut(state))[2] / self.moments.scale + self.moments.shift

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """`epochs` passes over one rollout.

        Returns:
            The latest metrics: train/policy_loss, train/value_loss, train/entropy (of one row of means),
            train/ratio_off (share of ratios outside the clip), train/value (in units of the returns' moments).

        Raises:
            FloatingPointError: a metric is not finite.
        """
        wanted, options = self._state.tick(), self._options
        rollout = next(batches)
        advantage, target = rollout_gae(
            rollout.reward, rollout.value, rollout.next_value, rollout.terminated, rollout.boundary,
            gamma=options.gamma, gae_lambda=options.gae_lambda, valid=rollout.valid,
        )  # fmt: skip
        keep = rollout.valid.flatten()
        state = self._cut(rollout.obs["state"]).flatten(0, 1)[keep]
        action, old = self._cut(rollout.action).flatten(0, 1)[keep], self._old_logp(rollout).flatten(0, 1)[keep]
        advantage, target = advantage.flatten()[keep], target.flatten()[keep]
        self.moments.observe(target[:, None])
        target = self.moments(target[:, None])[:, 0]
        advantage = (advantage - advantage.mean()) / advantage.std(correction=0).clamp_min(1e-8)
        found: dict[str, Tensor] = {}
        for _ in range(options.epochs):
            order = torch.randperm(len(state), generator=self._generator, device=state.device)
            for part in order.split(options.minibatch):
                found = self._fit(state[part], action[part], old[part], advantage[part], target[part])
        return self._state.report(found if wanted else None)

    def _ratio_logp(self, logp: Tensor) -> Tensor:
        """Log-densities whose differences are clipped."""
        return logp

    def _fit(self, state: Tensor, action: Tensor, old: Tensor, advantage: Tensor, target: Tensor) -> dict[str, Tensor]:
        options = self._options
        mean, std, value = self.net(state)
        logp, old = self._ratio_logp(gaussian_logp(action, mean, std)), self._ratio_logp(old)
        spread = advantage if logp.dim() == 1 else advantage[:, None].expand_as(logp)
        actor = policy_loss(logp, old, spread, clip=options.clip)
        error = (value - target).square().mean()
        entropy = (std.log() + 0.5 * (1 + _LOG_TAU)).sum()
        self._step(actor + options.value_weight * error - options.entropy_weight * entropy)
        outside = ((logp - old).exp() - 1.0).abs() > options.clip
        return {
            "policy_loss": actor.detach(), "value_loss": error.detach(), "entropy": entropy.detach(),
            "ratio_off": outside.float().mean(), "value": value.detach().mean(),
        }  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)
