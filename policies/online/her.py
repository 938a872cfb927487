"""Hindsight experience replay: soft actor-critic from steps that are replayed under goals that were reached."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import StrictBool
from torch import Tensor

from robot_rl.policies.nets.learner import TdRows
from robot_rl.policies.online.sac import SacOptions, SoftActorCritic
from robot_rl.state import Saved
from robot_rl.types import IOSpec, Needs
from robot_rl.types.options import Count, Positive, Rate


class HerOptions(SacOptions):
    """Of soft actor-critic with hindsight."""

    hindsight: Count = 4
    """k: goals that were reached later in the episode, for each goal that was asked; k / (k + 1) of every batch."""
    bound_target: StrictBool = True
    """Keep targets within what the rewards seen so far allow."""
    lr: Rate = 1e-3
    """Step size of everything that has none of its own."""
    init_alpha: Positive = 0.1
    """Temperature at the start."""
    normalize_obs: StrictBool | Literal["auto"] = "auto"
    """Standardise "state" with running moments, stored in the policy; auto: of Gymnasium's tasks, not of our worlds,
    which have scaled theirs."""


class RewardRange(Saved):
    """The smallest and the largest reward seen so far, and the largest discount.

    Args:
        device: of the batches.
    """

    saved = ("ends",)

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.ends = torch.tensor([float("inf"), -float("inf"), 0.0], dtype=torch.float64, device=device)

    @torch.no_grad()
    def observe(self, reward: Tensor, discount: Tensor) -> None:
        """Take in one batch: reward (B,), discount (B,)."""
        low, high, gamma = self.ends.tolist()
        found = (min(low, float(reward.min())), max(high, float(reward.max())), max(gamma, float(discount.max())))
        self.ends.copy_(torch.tensor(found, dtype=torch.float64))

    def bounds(self) -> tuple[float, float]:
        """The least and the largest discounted return of any length >= 1; infinite where nothing is discounted."""
        low, high, gamma = self.ends.tolist()
        longest = 1.0 / (1.0 - gamma) if gamma < 1.0 else float("inf")
        return (low * longest if low < 0.0 else low), (high * longest if high > 0.0 else high)


class Her(SoftActorCritic[HerOptions]):
    """Soft actor-critic whose batches hold goals of hindsight, for tasks with a goal and a sparse reward.

    The state shows the goal; what a step earns under another goal is asked of the environment by the replay
    (`data.hindsight.HindsightReplay`), so that the learner only sees rows. Targets are kept within the returns that the
    rewards seen so far allow, as the source clips them to [-1 / (1 - gamma), 0]; entropy is not counted there.

    Source: Andrychowicz et al., Hindsight Experience Replay, with soft actor-critic in place of DDPG.
    """

    method = "HER"

    def build(self) -> None:
        """Networks of soft actor-critic, and the range of rewards."""
        super().build()
        self.schedule(self.o.lr_schedule)
        self.range = RewardRange(self.generator.device)
        self.state.include({"reward_range": self.range})

    @classmethod
    def needs(cls, options: HerOptions, io: IOSpec) -> Needs:
        """Rows, of which a share has goals of hindsight."""
        return Needs(rows=options.batch_size, hindsight=options.hindsight)

    def bootstrap(self, b: TdRows) -> Tensor:
        """The target of soft actor-critic, within bounds where it is a number."""
        target = super().bootstrap(b)
        if not self.o.bound_target or self.o.value_head != "mse":
            return target
        self.range.observe(b.reward, b.discount)
        low, high = self.range.bounds()
        return target.clamp(low, high)
