"""What methods of fresh rollouts on modules share: how long a rollout is, and what they answer without a critic."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from robot_rl.policies.nets.learner import StateLearner, StateOptions
from robot_rl.types import IOSpec, Needs, Obs, OnPolicyLearner, Rollout
from robot_rl.types.options import Count, Whole


class RolloutOptions(StateOptions):
    """Of methods that learn from one rollout at a time."""

    rollout_steps: Count
    """Steps of every environment per update."""
    metrics_every: Whole = 1
    """Metrics are computed in every n-th update, other calls return the latest; 0 for never."""


M = TypeVar("M", bound=RolloutOptions)


class RolloutLearner(StateLearner[M, Rollout], OnPolicyLearner[M, Rollout]):
    """Base of methods that learn from one rollout at a time, with a critic only where `value` is their own."""

    @classmethod
    def needs(cls, options: M, io: IOSpec) -> Needs:
        """Rollouts of `rollout_steps` steps."""
        return replace(super().needs(options, io), rollout_steps=options.rollout_steps)

    def value(self, obs: Obs) -> Tensor:
        """(B,) zeros: there is no critic for rollouts to bootstrap from."""
        return torch.zeros(len(next(iter(obs.values()))))
