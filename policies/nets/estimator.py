"""What learners that value a given policy share: members side by side, and the policy's actions."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from robot_rl.policies.nets.learner import NetLearner, NetOptions
from robot_rl.policies.nets.rows import state_size
from robot_rl.types import IOSpec, Needs, Policy
from robot_rl.types.options import Count


class EstimatorOptions(NetOptions):
    """Of learners that value a given policy."""

    members: Count = 5
    """Estimates side by side, each from rows of its own: their spread tells how sure the value is."""


E = TypeVar("E", bound=EstimatorOptions)


class Estimator(NetLearner[E]):
    """Base of learners that value a given policy from logs of others.

    Every member learns from rows of its own (the caller gives each its own half of the episodes).

    Attributes:
        target_policy: what is valued.
        deterministic: by its mode.
        size: width of the state.
    """

    def __init__(
        self,
        options: E,
        io: IOSpec,
        policy: Policy,
        *,
        seed: int = 0,
        device: str = "cpu",
        deterministic: bool = True,
    ) -> None:
        """Build the members for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            policy: what is valued; answers tensors with tensors.
            seed: of weights and noise.
            device: torch device.
            deterministic: value the policy's mode.
        """
        super().__init__(options, io, seed=seed, device=device)
        self.target_policy, self.deterministic = policy, deterministic
        self.size = state_size(io, self.method)
        self.build()

    @classmethod
    def needs(cls, options: E, io: IOSpec) -> Needs:
        """Transitions of a log, the rows of all members at once."""
        return Needs(rows=options.batch_size * options.members, seeds=options.members)

    @torch.no_grad()
    def choose(self, state: Tensor) -> Tensor:
        """(..., A) actions of the policy at raw states (..., n)."""
        answer = self.target_policy.act({"state": state.reshape(-1, self.size)}, deterministic=self.deterministic)
        return torch.as_tensor(answer.value).to(state).view(*state.shape[:-1], -1)
