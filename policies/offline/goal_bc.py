"""Goal-conditioned cloning with temporal goal augmentation: what was never recorded as one can be joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.learner import LogLearner, LogOptions
from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import split, state_size
from robot_rl.types import Action, Array, IOSpec, LogFacts, Metrics, Needs, Obs, PolicyParts, StateDict, Transitions
from robot_rl.types.options import Count, Number, Rate, Share, Whole


class GoalPolicy:
    """A policy of [state, goal] that acts on the state alone; the goal is set, or read from the observation.

    Attributes:
        goal: (G,) what to reach; assign another at any time. Not used where the observation holds the goal.
    """

    parts = PolicyParts()

    def __init__(self, inner: MeanPolicy, io: IOSpec, goal: Sequence[float] | None, desired: tuple[int, ...]) -> None:
        """Wrap `inner`.

        Args:
            inner: answers [state, goal].
            io: interface without the goal.
            goal: values, or None while not known.
            desired: components of the state that hold the wanted goal; they are hidden from the network.
        """
        self.io, self._inner, self._desired = io, inner, list(desired)
        self.goal = None if goal is None else torch.tensor(goal, dtype=torch.float32)

    def reset(self, rows: Array | None = None) -> None:
        """No memory."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, n) -> (B, A) in [-1, 1].

        Raises:
            ValueError: no goal is set.
        """
        state = obs["state"]
        wide = self.join(torch.as_tensor(state).float())
        return self._inner.act(
            {"state": wide.numpy() if isinstance(state, np.ndarray) else wide}, deterministic=deterministic
        )

    def join(self, state: Tensor, goal: Tensor | None = None) -> Tensor:
        """(..., n + G) of states (..., n) and goals (..., G); the policy's own goal when None."""
        if goal is None and self._desired:
            goal = state[..., self._desired]
        if goal is None:
            if self.goal is None:
                raise ValueError(
                    "no goal is set: give policy.goal=[...] (values of the components in policy.achieved), or "
                    "policy.desired=[...] where the observation holds the goal"
                )
            goal = self.goal.to(state).expand(*state.shape[:-1], -1)
        if self._desired:
            state = state.clone()
            state[..., self._desired] = 0.0
        return torch.cat([state, goal], -1)

    def state_dict(self) -> StateDict:
        """Weights, normaliser and noise generator; the goal is configuration."""
        return self._inner.state_dict()

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place."""
        self._inner.load_state_dict(state)


class GoalBcOptions(LogOptions):
    """Of goal-conditioned cloning."""

    hidden: tuple[Count, ...] = (1024, 1024)
    """Widths of the hidden layers."""
    achieved: tuple[Whole, ...] | None = None
    """Components of the state that goals are made of; null for all."""
    desired: tuple[Whole, ...] = ()
    """Components of the state that hold the wanted goal, in the order of `achieved`."""
    goal: tuple[Number, ...] | None = None
    """Values to reach in evaluation, where the observation does not hold them."""
    stitch: Share = 0.5
    """Probability of a goal beyond another episode; 0 is plain goal cloning."""
    clusters: Count = 40
    """Of the states, for the former."""
    lr: Rate = 1e-3
    """Step size."""
    explore: Share = 0.0
    """Noise of the policy when it acts stochastically."""
    seeds: Annotated[int, Field(ge=1, le=1)] = 1
    """One run per learner."""

    def parts(self, size: int) -> tuple[int, ...]:
        """Components of a state of so many that goals are made of.

        Raises:
            ValueError: a component beyond the state, or goal, desired and achieved disagree in number.
        """
        achieved = tuple(range(size)) if self.achieved is None else self.achieved
        beyond = [i for i in (*achieved, *self.desired) if i >= size]
        if beyond:
            raise ValueError(f"policy.achieved or policy.desired names {beyond}, expected components 0 to {size - 1}")
        for name, given in (("goal", self.goal), ("desired", self.desired or None)):
            if given is not None and len(given) != len(achieved):
                raise ValueError(f"policy.{name} has {len(given)} entries, expected {len(achieved)}, one per goal")
        return achieved


class GoalBc(LogLearner[GoalBcOptions]):
    """Cloning of pi(a | s, g), g reached later in the episode or, with probability `stitch`, beyond another one's
    state in the same cluster.

    Plain goal cloning never sees a start together with a goal of another episode, so it cannot join them; the
    augmentation shows it such pairs. It assumes that states of one cluster can follow one another: coarse clusters join
    what no robot can.

    Metrics: train/loss, the mean squared error.

    Source: Ghugare et al., Closing the Gap between TD Learning and Supervised Learning, algorithm 1; defaults of
    RajGhugare19/stitching-is-combinatorial-generalisation.
    """

    method = "goal cloning"

    @classmethod
    def needs(cls, options: GoalBcOptions, io: IOSpec) -> Needs:
        """Rows with goals: a log without rewards will do."""
        o, achieved = options, options.parts(state_size(io, cls.method))
        goals = {"achieved": achieved, "stitch": o.stitch, "clusters": o.clusters}
        return Needs(rows=o.batch_size, extras=("episode", "step"), rewardless=True, goals=goals)

    def build(self) -> None:
        """An actor of [state, goal]."""
        o, self.goals = self.o, list(self.o.parts(self.size))
        wide = self.size + len(self.goals)
        self.norm = FixedNorm(wide, device=self.generator.device) if o.normalize else None
        self.actor = self.net("actor", wide, self.actions, decay=o.actor_decay)
        self.policy = GoalPolicy(self.mean_policy(self.actor, noise=o.explore), self.io, o.goal, o.desired)

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments; called once, before the first update."""
        if self.norm is not None:
            mean, std = facts.state_mean, facts.state_std
            self.norm.set(*(np.concatenate([moment, moment[self.goals]]) for moment in (mean, std)))

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One gradient step on one batch with goals.

        Raises:
            ValueError: the batch has no goals.
        """
        b = split(next(batches), 1, None)
        if "goal" not in b.extras:
            raise ValueError("the batch has no extras['goal']: draw it from robot_rl.data.goals.GoalDataset")
        x = self.policy.join(b.state, b.extras["goal"])
        error = (self.actor(x if self.norm is None else self.norm(x)).tanh() - b.action).square().mean(-1)
        self.actor.step(mean_rows(error))
        return self.metrics(loss=error)
