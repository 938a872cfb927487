"""Behaviour cloning: supervised learning of the data's actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from robot_rl.policies.nets.distributions import normal_logp
from robot_rl.policies.nets.learner import LogLearner, LogOptions
from robot_rl.policies.nets.net import mean_rows
from robot_rl.types import IOSpec, Metrics, Needs, Transitions

LOG_STD_RANGE = (-5.0, 2.0)


class BcOptions(LogOptions):
    """Of behaviour cloning."""

    gaussian: bool = False
    """Learn a state-free standard deviation as well, by log-likelihood."""
    explore: Annotated[float, Field(ge=0)] = 0.0
    """Noise of the deterministic policy when it acts stochastically."""


class Bc(LogLearner[BcOptions]):
    """Behaviour cloning, deterministic (squared error) or Gaussian (log-likelihood).

    On a share of the best episodes (`robot-rl offline top_fraction=0.1`) it is %BC, the baseline that tells whether a
    method gains by more than choosing good episodes.

    Metrics: train/loss, train/clone_error (mean squared error).

    Source: CORL any_percent_bc.py (deterministic network, defaults); Chen et al., Decision Transformer (%BC).
    """

    method = "BC"

    @classmethod
    def needs(cls, options: BcOptions, io: IOSpec) -> Needs:
        """Rows without rewards."""
        return replace(super().needs(options, io), rewardless=True)

    def build(self) -> None:
        """One network, whose mean acts."""
        o, a = self.o, self.actions
        more = {"log_std": (o.seeds, a)} if o.gaussian else {}
        self.actor = self.net("actor", self.size, a, more=more, decay=o.actor_decay)
        log_std = "log_std" if o.gaussian else None
        self.policy = self.mean_policy(self.actor, log_std=log_std, log_std_range=LOG_STD_RANGE, noise=o.explore)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One gradient step on one batch."""
        b = self.rows(next(batches))
        mean = self.actor(b.state).tanh()
        error = (mean - b.action).square()
        if self.o.gaussian:
            loss = -normal_logp(b.action, mean, self.actor["log_std"].clamp(*LOG_STD_RANGE)[:, None])
        else:
            loss = error.mean(-1)
        self.actor.step(mean_rows(loss))
        return self.metrics(loss=loss, clone_error=error)
