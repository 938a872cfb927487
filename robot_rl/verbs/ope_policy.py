"""Which policy an off-policy evaluation judges: all its estimators have to mean the same one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.types import Action, Array, Obs, Policy, PolicyParts

_NO_DENSITY = "this policy has no density; use FQE, or smooth=0.1 for a Gaussian around its action"


class Smoothed:
    """A Gaussian of fixed deviation around the action of a deterministic policy.

    Args:
        policy: answers tensors with tensors.
        std: deviation, in normalised actions.
        seed: of its samples.
    """

    def __init__(self, policy: Policy, std: float, seed: int) -> None:
        if not std > 0.0:
            raise ValueError(f"smooth is {std}, expected a standard deviation above 0, such as 0.1")
        self._policy, self._std, self.io = policy, std, policy.io
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def parts(self) -> PolicyParts:
        """The density of its noise."""
        return PolicyParts(log_prob=self.log_prob)

    def reset(self, rows: Array | None = None) -> None:
        """No memory of its own."""
        self._policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The policy's action and, unless deterministic, noise on it; not beyond [-1, 1]."""
        centre = torch.as_tensor(self._policy.act(obs, deterministic=True).value)
        if deterministic:
            return Action(centre)
        noise = torch.randn(centre.shape, generator=self._generator).to(centre)
        return Action((centre + self._std * noise).clamp(-1.0, 1.0))

    def log_prob(self, obs: Obs, action: Tensor) -> Tensor:
        """(B,) log-density before the bounds."""
        centre = torch.as_tensor(self._policy.act(obs, deterministic=True).value)
        z = (action.to(centre) - centre) / self._std
        return (-0.5 * z.square() - math.log(self._std) - 0.5 * math.log(2 * math.pi)).sum(-1)


@dataclass(frozen=True)
class Judged:
    """What is judged.

    Attributes:
        policy: answers tensors with tensors; with `log_prob` where `reason` is empty.
        deterministic: it is judged by its mode.
        name: for the user.
        reason: why there are no importance weights, or "".
    """

    policy: Policy
    deterministic: bool
    name: str
    reason: str = ""


def judge_policy(policy: Policy, *, ratios: bool, smooth: float | None, seed: int = 0) -> Judged:
    """The policy as it samples where importance weights are wanted and it has densities, else its mode.

    Weights compare densities, so they speak of the policy that samples; a value of its mode beside them, or inside a
    doubly robust estimate, would be another policy's.

    Args:
        policy: what was trained.
        ratios: importance weights are wanted.
        smooth: standard deviation of a Gaussian around its mode, or None.
        seed: of the samples of a smoothed policy.
    """
    if not ratios:
        return Judged(policy, True, "by its mode", "not asked for")
    if smooth is not None:
        return Judged(Smoothed(policy, smooth, seed), False, f"by its mode with noise of {smooth:g}")
    if policy.parts.log_prob is None:
        return Judged(policy, True, "by its mode", _NO_DENSITY)
    return Judged(policy, False, "as it samples")
