"""Fitted Q evaluation: the value of a given policy, learnt from logs of others."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from robot_rl.policies.nets.estimator import Estimator, EstimatorOptions
from robot_rl.policies.nets.net import Net, mean_rows
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import split
from robot_rl.types import LogFacts, Metrics, Transitions
from robot_rl.types.options import Count, Mixing, Rate


class FqeOptions(EstimatorOptions):
    """Of fitted Q evaluation."""

    samples: Count = 10
    """K: actions per state where the policy is valued as it samples."""
    lr: Rate = 1e-4
    """Step size."""
    tau: Mixing = 0.005
    """Polyak rate of the target."""
    normalize: bool = True
    """Standardise states by the data's moments."""


class Fqe(Estimator[FqeOptions]):
    """Q of a fixed policy by regression on r + discount mean_k Q'(s', a'_k), a'_k ~ policy.

    Metrics: train/q, train/td_error (root mean square).

    Source: Le, Voloshin and Yue, Batch Policy Learning under Constraints (FQE); defaults recalled from Fu et al.,
    Benchmarks for Deep Off-Policy Evaluation. Targets are clipped to what the rewards allow (ours).

    Attributes:
        limits: least and largest value that the log's rewards allow.
    """

    method = "FQE"

    def build(self) -> None:
        """A value per member, and their targets."""
        self.q = self.net("q", self.size + self.actions)
        self.target = self.target_copy("target", self.q)
        self.limits = (-math.inf, math.inf)
        self.norm: FixedNorm | None = None
        if self.o.normalize:
            self.norm = FixedNorm(self.size, device=self.generator.device)
            self.state.include({"norm": self.norm})

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and the limits of all values."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        if facts.gamma < 1.0:
            scale = 1.0 / (1.0 - facts.gamma)
            self.limits = (min(0.0, facts.reward_low) * scale, max(0.0, facts.reward_high) * scale)
        self.state.bound = facts.return_bound

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One regression step."""
        b = split(next(batches), self.seeds, None)  # raw states: the policy has its own moments
        with torch.no_grad():
            target = b.reward + b.discount * self._value(self.target, b.next_state).clamp_(*self.limits)
        q = self._look(self.q, b.state, b.action)
        error = (q - target).square()
        self.q.step(mean_rows(error))
        self.target.soft_update(self.q, self.o.tau)
        return self.metrics(q=q, td_error=error.detach().mean().sqrt())

    def _look(self, net: Net, state: Tensor, action: Tensor) -> Tensor:
        """(M, B) of raw states and actions (M, B, ...)."""
        return net(state if self.norm is None else self.norm(state), action)

    def _value(self, net: Net, state: Tensor) -> Tensor:
        """(M, B) of raw states (M, B, n): the mean over K actions of the policy."""
        count = 1 if self.deterministic else self.o.samples
        return torch.stack([self._look(net, state, self.choose(state)) for _ in range(count)]).mean(0)

    @torch.no_grad()
    def q_values(self, state: Tensor, action: Tensor) -> Tensor:
        """(M, B) of raw states (B, n) and actions (B, A)."""
        return self._look(self.q, *(x.to(self.device).expand(self.seeds, *x.shape) for x in (state, action)))

    @torch.no_grad()
    def state_values(self, state: Tensor) -> Tensor:
        """(M, B) of raw states (B, n): Q averaged over the policy's actions, every member's on the same ones."""
        count = 1 if self.deterministic else self.o.samples
        return torch.stack([self.q_values(state, self.choose(state)) for _ in range(count)]).mean(0)

    @torch.no_grad()
    def td_error(self, batch: Transitions) -> float:
        """Root mean square of the temporal-difference error on rows that were held out."""
        target = batch.reward + batch.discount * self.state_values(batch.next_obs["state"])
        return float((self.q_values(batch.obs["state"], batch.action) - target).square().mean().sqrt())
