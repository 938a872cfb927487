"""QC-FQL: Q-chunking whose actor answers in one step, kept near the cloned flow by distillation."""

from __future__ import annotations

from typing import Annotated, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.net import Net
from robot_rl.policies.sequence.qc import ChunkValues, QcOptions
from robot_rl.types.options import NotNegative


class QcFqlOptions(QcOptions):
    """Of QC-FQL."""

    alpha: NotNegative = 100.0
    """Weight of the distillation; 100 at h = 5, 10 at h = 1 (3 to 1000 over the source's tasks)."""
    normalize_q: bool = False
    """Divide the Q loss by mean |Q|; alpha then in 0.03 ... 10."""
    samples: Annotated[int, Field(ge=1, le=1)] = 1
    """The actor answers in one step."""


F = TypeVar("F", bound=QcFqlOptions)


class OneStepActor(ChunkValues[F]):
    """A one-step actor mu(s, z), z ~ N(0, I), on chunks.

    Its loss is alpha mean |mu(s, z) - flow(s, z)|^2 - mean Q(s, clip mu(s, z)): the flow clones the data, the actor
    copies the flow from the same noise where Q has nothing to say, and leaves it where Q has.

    Source: Park et al., Flow Q-Learning; Li et al., Reinforcement Learning with Action Chunking (QC-FQL). Where we
    differ: as in `Qc`.
    """

    def build(self) -> None:
        """The actor mu(s, z)."""
        self.actor = self.net("actor", self.size + self.flat, self.flat)

    def choose(self, state: Tensor, generator: torch.Generator) -> Tensor:
        """(B, H A) clip mu(s, z)."""
        return self.actor(state, self.flow.noise(len(state), generator)).clamp(-1.0, 1.0)

    def actor_step(self, state: Tensor) -> dict[str, Tensor]:
        """alpha |mu(s, z) - flow(s, z)|^2 - Q(s, clip mu(s, z))."""
        noise = self.flow.noise(len(state), self.generator)
        raw = self.actor(state, noise)
        distill_loss = (raw - self.flow.sample(state, noise)).square().mean()
        q = self.head.value(self.outputs(self.critic, state, raw.clamp(-1.0, 1.0))).mean(0)
        scale = 1.0 / q.detach().abs().mean().clamp_min(1e-6) if self.o.normalize_q else torch.ones(())
        self.actor.step(self.o.alpha * distill_loss - scale * q.mean())
        return {"distill_loss": distill_loss, "actor_q": q}

    def acting_nets(self) -> dict[str, Net]:
        """What acting needs."""
        return {"actor": self.actor}


class QcFql(OneStepActor[QcFqlOptions]):
    """`OneStepActor` on chunks: QC-FQL."""

    method = "QC-FQL"
