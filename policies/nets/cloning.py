"""What learners that imitate a person have in common: a squashed Gaussian of the state, and its cloning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import LOG_STD_MIN
from robot_rl.policies.nets.imitation import CLONE_EDGE, SWITCH_WEIGHT, human_rows, imitation_loss
from robot_rl.policies.nets.learner import NetLearner, NetOptions
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.squashed_policy import SquashedGaussianPolicy
from robot_rl.types import IOSpec, Metrics, Obs, Transitions
from robot_rl.types.options import NotNegative, Part, Positive, Whole


class CloningOptions(NetOptions):
    """What they may be told."""

    bc_steps: Whole = 1000
    """Steps of cloning on demonstrations before the first own step."""
    min_std: Positive = 0.1
    """Floor of the standard deviation inside the loss."""
    edge: Part = CLONE_EDGE
    """Cloned actions are clipped to 1 - edge."""
    switch_weight: NotNegative = SWITCH_WEIGHT
    """Of rows that open or close a gripper; all others weigh at most 1."""
    normalize_obs: bool = True
    """Standardise the state with running moments."""
    matmul: Literal["float32", "bf16", "auto"] = "auto"
    """Type of the square products; auto: bf16 where native."""
    metrics_every: Whole = 1
    """Metrics are computed in every n-th update, other calls return the latest; 0 for never."""


C = TypeVar("C", bound=CloningOptions)


class CloningLearner(NetLearner[C]):
    """Base of learners that imitate a person.

    Attributes:
        norm: of states, or None.
        actor: (B, S) -> (B, 2A) of the policy.
    """

    def __init__(self, options: C, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build for `io`.

        Args:
            options: of the method.
            io: observation "state".
            seed: of weights and draws.
            device: torch device.

        Raises:
            ValueError: no "state", or pictures.
        """
        super().__init__(options, io, seed=seed, device=device)
        if set(io.obs) != {"state"}:
            raise ValueError(f"{self.method} reads 'state' alone, got {sorted(io.obs)}; set cameras=[]")
        self.size = io.obs["state"][0][0]
        self.norm = RunningNorm(self.size, device=device) if options.normalize_obs else None
        self.build()
        self.policy = SquashedGaussianPolicy(
            io,
            self.actor.shape,
            self.actor.params,
            seed=seed + 1,
            normalizer=self.norm,
            log_std_min=self.log_std_min,
        )
        self.state.include({"policy": self.policy})

    @property
    def log_std_min(self) -> float:
        """Lower limit of the log standard deviation of the policy that acts."""
        return LOG_STD_MIN

    def build(self) -> None:
        """The actor; a method adds what else it has."""
        self.actor = self.net("actor", self.size, 2 * self.actions)

    def look(self, obs: Obs) -> Tensor:
        """(B, S) states as networks read them."""
        return obs["state"] if self.norm is None else self.norm(obs["state"])

    def cloning_loss(self, raw: Tensor, batch: Transitions) -> Tensor:
        """() -log pi(a | s) of what the person did, mean by the rows' weights."""
        rows = human_rows(batch, switch_weight=self.o.switch_weight)
        return imitation_loss(raw, batch.action, rows, min_std=self.o.min_std, edge=self.o.edge)

    def clone(self, batch: Transitions) -> Tensor:
        """One step of cloning; () the loss before it."""
        if self.norm is not None:
            self.norm.observe(batch.obs["state"])
        loss = self.cloning_loss(self.actor(self.look(batch.obs)), batch)
        self.actor.step(loss)
        return loss.detach()

    def pretrain(self, batches: Iterator[Transitions], /) -> Metrics:
        """`bc_steps` of cloning on demonstrations; pretrain/nll of the last batch."""
        loss = torch.zeros(())
        for _ in range(self.o.bc_steps):
            loss = self.clone(next(batches))
        return {"pretrain/nll": float(loss)} if self.o.bc_steps else {}
