"""HG-DAgger: clone what the person does, demonstrations and interventions alike."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from robot_rl.policies.nets.cloning import CloningLearner, CloningOptions
from robot_rl.types import Metrics, Transitions
from robot_rl.types.options import Count


class HgDaggerOptions(CloningOptions):
    """Of HG-DAgger."""

    utd: Count = 2
    """Steps per update, each on a batch of its own."""


class HgDagger(CloningLearner[HgDaggerOptions]):
    """Behaviour cloning on the aggregated human actions, trained on while the person gates the robot.

    Rows weigh by `Transitions.extras["imitate"]`: the policy's own steps count nothing.

    Source: Kelly et al., HG-DAgger: Interactive Imitation Learning with Human Experts. Where we differ: no estimate of
    the policy's doubt; a squashed Gaussian instead of a deterministic network.
    """

    method = "HG-DAgger"

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """`utd` steps; train/il_loss of the last."""
        loss = torch.zeros(())
        for _ in range(self.o.utd):
            loss = self.clone(next(batches))
        return self.metrics(il_loss=loss)
