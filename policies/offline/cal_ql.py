"""Cal-QL: CQL whose pushed-down values never fall below the return that the data itself reached."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from robot_rl.policies.nets.rows import Rows
from robot_rl.policies.offline.cql import Conservative, CqlOptions
from robot_rl.types import IOSpec, Needs
from robot_rl.types.options import Count, NotNegative


class CalQlOptions(CqlOptions):
    """Of Cal-QL: those of CQL with the defaults of AntMaze."""

    hidden: tuple[Count, ...] = (256, 256)
    """Widths of the actor."""
    critic_hidden: tuple[Count, ...] | None = (256, 256, 256, 256)
    """Widths of the critics; null means hidden."""
    alpha_cql: NotNegative = 5.0
    """Weight of the conservative term; 5 AntMaze, 1 Adroit."""
    max_target_backup: bool = True
    """The target takes the best of the sampled next actions."""
    actor_lr: NotNegative = 1e-4
    """Step size of actor and temperature."""
    normalize: bool = False
    """Standardise states by the data's moments."""


class CalQl(Conservative[CalQlOptions]):
    """Calibrated Q-learning, for offline training that is followed by online fine-tuning.

    In the conservative term the values of the policy's actions (not of the uniform ones) are replaced by
    max(Q, return-to-go of the logged step), so that the values keep the scale of returns and fine-tuning does not begin
    by unlearning. Rows without "return_to_go" (online ones, or a `Mix` with them) fall back to CQL, as CORL does.

    Metrics: those of CQL, train/floored (share of values that were replaced).

    Source: Nakamoto et al., Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning, equation 5.1;
    CORL cal_ql.py.
    """

    method = "Cal-QL"

    @classmethod
    def needs(cls, options: CalQlOptions, io: IOSpec) -> Needs:
        """Rows with the return that the log reached."""
        return replace(super().needs(options, io), extras=("return_to_go",))

    def floor(self, own: Tensor, b: Rows) -> Tensor:
        """max(Q, return-to-go)."""
        return torch.maximum(own, b.extras["return_to_go"]) if "return_to_go" in b.extras else own

    def measure(self, own: Tensor, b: Rows) -> dict[str, Tensor]:
        """Share of values below the return-to-go."""
        if "return_to_go" not in b.extras or not self.due:
            return {}
        return {"floored": own.detach() < b.extras["return_to_go"]}
