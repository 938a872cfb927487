"""PPO on rollouts of older policies: collection and learning overlap, the loss knows who acted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import Tensor, ones_like

from robot_rl.advantage import whiten
from robot_rl.advantage.importance import bounded_weight, effective_sample_size
from robot_rl.policies.online.ppo import PpoLearner, PpoPolicy, VectorPpoOptions
from robot_rl.types import IOSpec, Metrics, Rollout, StaleLearner


class PpoAsyncOptions(VectorPpoOptions):
    """Of PPO on stale rollouts; `normalize_advantage` is over the rollout, before the weights."""

    correction: Literal["decoupled", "naive"] = "decoupled"
    """decoupled: the clip is around the policy at the start of the update; naive: around the one that acted."""
    cap: Annotated[float, Field(gt=0)] = 5.0
    """Upper bound of the weight pi_prox / pi_behav."""
    lag: Annotated[int, Field(ge=0)] | None = None
    """Act with the policy of this many updates ago, in turns with learning and reproducibly; null = collect in a thread
    of its own while learning goes on."""
    queue: Annotated[int, Field(ge=1)] = 1
    """Finished rollouts that may wait for the learner (lag null); a rollout is at most queue + 1 updates old."""


class PpoAsync(PpoLearner[PpoAsyncOptions], StaleLearner[PpoAsyncOptions, Rollout]):
    """PPO whose rollouts may come from a policy that is some updates old.

    "decoupled": L = mean w min(rho A, clip(rho, 1 - c, 1 + c) A) with rho = pi / pi_prox and w = pi_prox / pi_behav,
    pi_prox the policy at the start of the update. The clip limits how far an update goes, the weight says whose data
    they are. "naive" is plain PPO with rho = pi / pi_behav: what is stale lies outside the clip from the start, and a
    part of the data teaches nothing or pulls back to the old policy.

    Source: Hilton et al., Batch size-invariance for policy optimization (decoupled objective); AReaL.
    """

    def __init__(
        self, options: PpoAsyncOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        super().__init__(options, io, seed=seed, device=device, gamma=gamma)
        self.lag, self.queue = options.lag, options.queue
        self._normalize_parts = False
        self._noise = int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])
        self._stale: Metrics = {}

    def actor(self) -> PpoPolicy:
        """A policy of the same shape with weights and noise of its own; it acts after `load_state_dict`."""
        return self._make_policy(self._params.detach().cpu().clone(), self._noise, fast=False)

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """As `Ppo`, and how far the data are from the present policy."""
        metrics = super().update(batches)
        return {**metrics, **self._stale}

    def _rows(self, rollout: Rollout) -> dict[str, Tensor]:
        rows = super()._rows(rollout)
        proximal = self._logp(rows)
        weight = (proximal - rows["logp"]).clamp(-20.0, 20.0).exp()
        bounded = bounded_weight(weight, "clamp", cap=self.o.cap)
        every = ones_like(weight).bool()
        advantage = whiten(rows["advantage"], every) if self.o.normalize_advantage else rows["advantage"]
        self._stale = {
            "train/behaviour_kl": float((weight - 1.0 - weight.log()).mean()),
            "train/weight_max": float(weight.max()),
            "train/effective_sample_size": float(effective_sample_size(bounded, every)),
        }
        if self.o.correction == "decoupled":
            # w > 0, so that it may go inside the minimum.
            return {**rows, "logp": proximal, "advantage": bounded * advantage}
        return {**rows, "advantage": advantage}
