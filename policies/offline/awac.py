"""AWAC: an off-policy critic, and an actor that copies the data's actions weighted by their advantage."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from robot_rl.policies.nets.distributions import normal_logp
from robot_rl.policies.nets.learner import LogLearner, LogOptions
from robot_rl.policies.nets.net import mean_rows
from robot_rl.types import Metrics, Transitions
from robot_rl.types.options import Count, Positive, Share

LOG_STD_RANGE = (-20.0, 2.0)


class AwacOptions(LogOptions):
    """Of AWAC."""

    hidden: tuple[Count, ...] = (256, 256, 256)
    """Widths of the hidden layers of all networks."""
    temperature: Positive = 0.3333
    """lambda; 0.3333 locomotion, 0.1 AntMaze, Adroit and Maze2d."""
    weight_clip: Positive = 100.0
    """Largest weight of a row."""
    tau: Share = 0.005
    """Polyak rate of the target critics."""
    normalize: bool = False
    """Standardise states by the data's moments."""


class Awac(LogLearner[AwacOptions]):
    """Advantage-weighted actor-critic.

    y = r + discount min_i Q'_i(s', a'), a' sampled from the policy and clipped; the actor minimises
    -mean(w log pi(a|s)) with w = min(exp(A / lambda), 100) and A = min_i Q_i(s, a) - min_i Q_i(s, a ~ pi), both with
    the online critics. The Gaussian's mean is not squashed, its log-std is state-free.

    Metrics: train/q, train/target, train/critic_loss, train/actor_loss, train/advantage, train/weight, train/std.

    Source: Nair et al., AWAC: Accelerating Online RL with Offline Datasets, algorithm 1; details of CORL awac.py.
    """

    method = "AWAC"

    def build(self) -> None:
        """Twin critics with targets, and an actor with a state-free standard deviation."""
        o, s, a = self.o, self.size, self.actions
        self.critic = self.net("critic", s + a, members=2)
        self.actor = self.net("actor", s, a, more={"log_std": (o.seeds, a)}, decay=o.actor_decay)
        self.target = self.target_copy("target", self.critic)
        self.policy = self.mean_policy(self.actor, squash=False, log_std="log_std", log_std_range=LOG_STD_RANGE)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of critics, then of the actor, on one batch."""
        o, b = self.o, self.rows(next(batches))
        size = b.action.shape[1]
        mean, log_std = self.actor(b.state), self.actor["log_std"].clamp(*LOG_STD_RANGE)[:, None]
        with torch.no_grad():
            means = torch.cat([mean, self.actor(b.next_state)], 1)
            noise = torch.randn(means.shape, generator=self.generator, device=means.device)
            drawn = torch.addcmul(means, noise, log_std.exp()).clamp_(-1.0, 1.0)
            target = b.reward + b.discount * self.target(b.next_state, drawn[:, size:]).amin(0)
        q = self.critic(b.state, b.action)
        critic_loss = (q - target).square()
        self.critic.step(mean_rows(critic_loss))
        with torch.no_grad():
            state, action = torch.cat([b.state, b.state], 1), torch.cat([b.action, drawn[:, :size]], 1)
            values = self.critic(state, action).amin(0)
            advantage = values[:, :size] - values[:, size:]
            weight = (advantage / o.temperature).exp_().clamp_(max=o.weight_clip)
        actor_loss = -weight * normal_logp(b.action, mean, log_std)
        self.actor.step(mean_rows(actor_loss))
        self.target.soft_update(self.critic, o.tau)
        losses = {"critic_loss": critic_loss.sum(0), "actor_loss": actor_loss}
        return self.metrics(q=q, target=target, **losses, advantage=advantage, weight=weight, std=log_std.exp())
