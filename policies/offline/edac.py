"""EDAC: SAC-N with critics kept diverse, so that a few do the work of hundreds."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationInfo, field_validator
from torch import Tensor

from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.rows import Rows
from robot_rl.policies.offline.sac_n import EnsembleActorCritic, SacNOptions
from robot_rl.types.options import NotNegative


def diversity_loss(slope: Tensor) -> Tensor:
    """Mean cosine between the critics' action gradients.

    Mean over the batch of sum_{i != j} u_i u_j / (N - 1) with unit vectors u = g / (|g| + eps); written as
    |s|^2 - sum |u_i|^2, s their sum: linear in N.

    Args:
        slope: (N, ..., A) gradients of Q_i(s, a) by the data's action, not normalised.

    Returns:
        () N for identical critics, 0 for orthogonal ones.

    Source: An et al., Uncertainty-Based Offline RL with Diversified Q-Ensemble, equation 5.
    """
    unit = slope / (slope.norm(dim=-1, keepdim=True) + 1e-10)
    cosine = unit.sum(0).square().sum(-1) - unit.square().sum((0, -1))
    return cosine.mean() / max(len(slope) - 1, 1)


class EdacOptions(SacNOptions):
    """Of EDAC; critics: 10 halfcheetah, walker2d, AntMaze and Maze2d, 50 hopper and Adroit, 20 pen."""

    eta: NotNegative = 1.0
    """Weight of the diversity; 1 locomotion (5 medium-expert), 10 to 1000 pen, 200 Adroit, 0.1 Maze2d."""

    @field_validator("eta")
    @classmethod
    def check_eta(cls, eta: float, info: ValidationInfo) -> float:
        """Refuse diversity of one critic."""
        if eta > 0 and info.data.get("critics", 2) < 2:
            raise ValueError("0, or at least two critics, which can differ")
        return eta


D = TypeVar("D", bound=EdacOptions)


class DiverseCritics(EnsembleActorCritic[D]):
    """SAC-N plus eta times the cosine between the critics' action gradients.

    Metrics: those of SAC-N, train/diversity.
    """

    def step_critics(self, b: Rows, target: Tensor) -> dict[str, Tensor]:
        """One step of the critics towards targets (S, B), and away from each other."""
        if not self.o.eta:
            return super().step_critics(b, target)
        q, slope = self.critic.with_slopes(b.state, b.action)
        critic_loss, diversity = (q - target).square(), diversity_loss(slope)
        self.critic.step(mean_rows(critic_loss) + self.o.eta * diversity)
        return {**self.measure(q, critic_loss), "diversity": diversity}


class Edac(DiverseCritics[EdacOptions]):
    """Ensemble-diversified actor-critic.

    Source: An et al., Uncertainty-Based Offline RL with Diversified Q-Ensemble, algorithm 1; CORL edac.py.
    """

    method = "EDAC"
