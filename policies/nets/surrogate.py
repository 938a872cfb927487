"""What every method of the clipped surrogate may be told, whatever its networks and rollouts are.

Source: Schulman et al., Proximal Policy Optimization Algorithms, 2017, equation 7; High-Dimensional Continuous Control
Using Generalized Advantage Estimation, 2016, equation 16.
"""

from __future__ import annotations

from torch import Tensor

from robot_rl.advantage import RolloutRows, rollout_gae
from robot_rl.types import Options, Rollout
from robot_rl.types.options import Positive, Share


class SurrogateOptions(Options):
    """How far a policy may move from the one that acted, and what its advantages are."""

    gae_lambda: Share = 0.95
    """Weight of longer returns in the advantage."""
    clip: Positive = 0.2
    """The probability ratio is clipped to [1 - clip, 1 + clip]."""


def rollout_credit(rollout: Rollout, *, gamma: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
    """(T, N) advantages by GAE and targets of the critic."""
    rows = RolloutRows(
        rollout.reward, rollout.value, rollout.next_value, rollout.terminated, rollout.boundary, valid=rollout.valid
    )
    return rollout_gae(rows, gamma=gamma, gae_lambda=gae_lambda)
