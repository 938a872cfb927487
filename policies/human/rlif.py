"""RLIF: learn from when a person takes over, without any task reward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from robot_rl.policies.human.imitation_sac import ImitatingActorCritic, ImitationSacOptions, Updates
from robot_rl.types import Metrics, Transitions
from robot_rl.types.options import NotNegative


class RlifOptions(ImitationSacOptions):
    """Of RLIF; those of `ImitationSac` with what is published as defaults."""

    w_task: NotNegative = 0.0
    """Weight of the task reward."""
    w_rlif: NotNegative = 1.0
    """Weight of the reward from interventions."""
    terminal_on_takeover: bool = False
    """The step before a takeover does not bootstrap."""
    bc_steps: Updates = 0
    """Behaviour cloning before the first own step."""
    il_weight: NotNegative = 0.0
    """Imitation beside the RL loss."""
    acting_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The policy that acts is a running mean of the actor's weights, which takes in the newest at this rate."""


class Rlif(ImitatingActorCritic[RlifOptions]):
    """Reward -1 for the policy's step before a takeover, 0 for all else; then RLPD.

    The person need not drive well, only know when it goes wrong: their actions are never a target unless `bc_steps` or
    `il_weight` says so. The reward is made here from what was recorded, so the same log can train with any weights.

    Source: Luo et al., RLIF: Interactive Imitation Learning as Reinforcement Learning. Where we differ: every step of
    an intervention is stored (the released code keeps the last one of each), as is the last step of an episode, and a
    task reward may be mixed in.
    """

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """As SAC's, on relabelled rows.

        Raises:
            ValueError: the batches do not say where a person took over (extras "reward_task" and "reward_rlif").
        """
        return super().update(map(self.relabel, batches))

    def relabel(self, batch: Transitions) -> Transitions:
        """The batch with r = w_task r_task + w_rlif r_rlif."""
        if "reward_rlif" not in batch.extras:
            raise ValueError(
                "RLIF is paid by where a person took over, and these steps do not say: use robot-rl hil "
                "policy=human/rlif, which records it"
            )
        taken = batch.extras["reward_rlif"]
        reward = self.o.w_task * batch.extras["reward_task"] + self.o.w_rlif * taken
        discount = batch.discount * (taken == 0) if self.o.terminal_on_takeover else batch.discount
        return replace(batch, reward=reward, discount=discount)
