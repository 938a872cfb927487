"""Soft actor-critic regularised towards a policy cloned from demonstrations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.rows import Rows
from robot_rl.policies.offline.sac_n import EnsembleActorCritic, SacNOptions
from robot_rl.types import Metrics, Transitions
from robot_rl.types.options import Count, NotNegative

_LOW, _HIGH = -5.0, 2.0


def gaussian_kl(raw: Tensor, other: Tensor) -> Tensor:
    """(...) KL(pi || other) of two squashed Gaussians, mean and log-std (..., 2A) each.

    tanh is one-to-one, so the divergence is that of the Gaussians below it: no samples are needed.
    """
    mean, wide = raw.chunk(2, -1)
    mean0, wide0 = other.chunk(2, -1)
    log_std, log_std0 = wide.clamp(_LOW, _HIGH), wide0.clamp(_LOW, _HIGH)
    square = (2.0 * log_std).exp() + (mean - mean0).square()
    return (log_std0 - log_std + 0.5 * (square * (-2.0 * log_std0).exp() - 1.0)).sum(-1)


def squashed_nll(raw: Tensor, action: Tensor) -> Tensor:
    """(...) negative log-density of actions (..., A) under the squashed Gaussian `raw`, without its tanh term."""
    mean, wide = raw.chunk(2, -1)
    log_std = wide.clamp(_LOW, _HIGH)
    z = (torch.atanh(action.clamp(-1 + 1e-3, 1 - 1e-3)) - mean) * (-log_std).exp()
    return (0.5 * z.square() + log_std).sum(-1)


class DemoKlOptions(SacNOptions):
    """Of demonstration-regularised reinforcement learning."""

    hidden: tuple[Count, ...] = (256, 256)
    """Widths of the hidden layers of all networks."""
    critics: Count = 2
    """N of the soft actor-critic."""
    weight: NotNegative = 1.0
    """lambda at the start."""
    decay_updates: Annotated[int, Field(ge=0)] = 0
    """Updates after cloning over which lambda falls linearly to 0; 0 keeps it."""
    clone_updates: Annotated[int, Field(ge=0)] = 5000
    """Updates that fit the cloned policy."""
    normalize: bool = True
    """Standardise states by the data's moments."""


class DemoKl(EnsembleActorCritic[DemoKlOptions]):
    """Demonstration-regularised reinforcement learning.

    The first `clone_updates` updates fit pi_BC to the demonstrations (the second part of a mix, extras "source" above
    0; all rows where there is one part). Then the actor minimises alpha log pi - min Q + lambda KL(pi || pi_BC) with
    lambda falling to 0 over `decay_updates`.

    Metrics: train/clone_loss; then those of SAC-N, train/kl.

    Source: Tiapkin et al., Demonstration-Regularized RL (KL to a cloned policy); soft actor-critic of `SacN`.
    """

    method = "demo-KL"

    def build(self) -> None:
        """As SAC-N, and the cloned policy."""
        super().build()
        self.clone = self.net("clone", self.size, 2 * self.actions)

    @property
    def prelude(self) -> int:
        """Those of the cloned policy."""
        return self.o.clone_updates

    @property
    def weight(self) -> float:
        """lambda of the coming update."""
        done, fade = max(self.state.updates - self.prelude, 0), self.o.decay_updates
        return self.o.weight * (max(0.0, 1.0 - done / fade) if fade else 1.0)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of the cloned policy, or, once that is fitted, one of SAC."""
        if self.next_update > self.prelude:
            return super().update(batches)
        b = self.rows(next(batches))
        keep = torch.ones_like(b.reward)
        if "source" in b.extras:
            keep = (b.extras["source"] > 0).to(keep.dtype)
        loss = (squashed_nll(self.clone(b.state), b.action) * keep).sum() / keep.sum().clamp_min(1.0)
        self.clone.step(loss)
        if self.next_update == self.prelude:  # the actor begins as the clone
            self.actor.soft_update(self.clone, 1.0)
        return self.metrics(clone_loss=loss)

    def actor_terms(self, b: Rows, raw: Tensor, action: Tensor, low: Tensor) -> Tensor | float:
        """Those of SAC-N, and lambda KL(pi || pi_BC)."""
        with torch.no_grad():
            clone = self.clone(b.state)
        self.kl = gaussian_kl(raw, clone)
        return super().actor_terms(b, raw, action, low) + self.weight * self.kl

    def step_critics(self, b: Rows, target: Tensor) -> dict[str, Tensor]:
        """As SAC-N."""
        return {**super().step_critics(b, target), "kl": self.kl}
