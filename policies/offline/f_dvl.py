"""f-DVL: implicit Q-learning with the value loss of dual RL, which never exponentiates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.rows import Rows
from robot_rl.policies.offline.iql import ImplicitOptions, ImplicitQ
from robot_rl.types.options import Count, Positive


def dual_loss(diff: Tensor, weight: float, divergence: str, variant: str = "exact") -> Tensor:
    """(1 - weight) V + weight f*(Q - V), without the constant (1 - weight) Q.

    With x = Q - V: total variation f*(x) = max(x, 0); Pearson chi^2 f*(x) = x + x^2 / 4 for x >= -2, else -1, which is
    sup over w >= 0 of w x - (w - 1)^2. Towards weight 1 the minimiser leans towards the maximum.

    Args:
        diff: (...) Q - V.
        weight: lambda in (0, 1).
        divergence: "chi2" or "tv".
        variant: "exact", or "code": what the public code computes for chi^2, max(x + x^2 / 4, 0), whose gradient is
            that of the first term alone for -4 < x < 0 and grows again below.

    Source: Sikchi et al., Dual RL: Unification and New Methods, section 5 (f-DVL); code hari-sikchi/DVL.
    """
    if divergence == "tv":
        conjugate = diff.relu()
    elif variant == "code":
        conjugate = (diff + diff.square() / 4).relu()
    else:
        conjugate = (1.0 + diff.clamp(min=-2.0) / 2).square() - 1.0
    return weight * conjugate - (1 - weight) * diff


class FDvlOptions(ImplicitOptions):
    """Of f-DVL."""

    batch_size: Count = 1024
    """Rows per update of one seed."""
    divergence: Literal["chi2", "tv"] = "chi2"
    """chi2 for locomotion, tv for AntMaze."""
    weight: Annotated[float, Field(gt=0, lt=1)] = 0.7
    """lambda; 0.7 locomotion, 0.8 AntMaze."""
    variant: Literal["exact", "code"] = "exact"
    """The exact conjugate, or that of the public code."""
    random_actions: Annotated[int, Field(ge=0)] = 0
    """Uniform actions per row that join the value batch."""
    value_norm: bool = True
    """LayerNorm in the value network."""
    huber: Positive | None = 20.0
    """Threshold of a Huber loss for the critics; null for squared error."""


class FDvl(ImplicitQ[FDvlOptions]):
    """Dual V-learning with an f-divergence.

    Source: Sikchi et al., Dual RL: Unification and New Methods for Reinforcement and Imitation Learning; Huber loss of
    the critics and policy of its code, which is XQL's. The weight 0.7 for locomotion is ours (the code's commands use
    another parametrisation there), 0.8 for AntMaze is theirs.
    """

    method = "f-DVL"

    def value_rows(self, b: Rows, q: Tensor) -> tuple[Tensor, Tensor]:
        """With random actions beside the log's."""
        return self.with_random_actions(b, q, self.o.random_actions)

    def value_loss(self, diff: Tensor) -> Tensor:
        """Dual loss of the divergence."""
        o = self.o
        return dual_loss(diff, o.weight, o.divergence, o.variant)
