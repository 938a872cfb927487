"""TD3+BC: an off-policy actor-critic whose actor also stays near the data's actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.learner import LogLearner, LogOptions
from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.rows import Rows
from robot_rl.types import Metrics, Transitions
from robot_rl.types.options import Count, Share

Noise = Annotated[float, Field(ge=0)]


class Td3BcOptions(LogOptions):
    """Of TD3+BC."""

    alpha: Annotated[float, Field(ge=0)] = 2.5
    """Weight of the critic against the cloning term; 0 is behaviour cloning."""
    policy_noise: Noise = 0.2
    """Standard deviation of the noise on the target policy's action."""
    noise_clip: Noise = 0.5
    """Its bound."""
    policy_every: Count = 2
    """The actor learns in every n-th update."""
    tau: Share = 0.005
    """Polyak rate of the targets, at the actor's steps."""
    explore: Noise = 0.1
    """Noise of the policy when it acts stochastically (online fine-tuning)."""


T = TypeVar("T", bound=Td3BcOptions)


class NearLog(LogLearner[T]):
    """TD3 with a behaviour-cloning term: what TD3+BC shares with the method that teaches by it.

    Target y = r + discount min_i Q'_i(s', clip(pi'(s') + noise)); the actor, every second update, minimises
    -lambda Q_1(s, pi(s)) + (pi(s) - a)^2 with lambda = alpha / mean |Q_1|. Targets move with the actor's steps.

    Metrics: train/q, train/target, train/critic_loss, train/actor_loss, train/clone_error.
    """

    def build(self) -> None:
        """Twin critics, an actor, and a target of each."""
        s, a = self.size, self.actions
        self.critic = self.net("critic", s + a, members=2)
        self.actor = self.net("actor", s, a, decay=self.o.actor_decay)
        self.critic_target = self.target_copy("critic_target", self.critic)
        self.actor_target = self.target_copy("actor_target", self.actor)
        self.policy = self.mean_policy(self.actor, noise=self.o.explore)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step on one batch."""
        return self.metrics(**self.learn(self.rows(next(batches))))

    def learn(self, b: Rows) -> dict[str, Tensor]:
        """One critic step, and every `policy_every`-th time one of the actor and the targets; what is measured."""
        o = self.o
        with torch.no_grad():
            action = self.actor_target(b.next_state).tanh_()
            noise = torch.randn(action.shape, generator=self.generator, device=action.device)
            action.add_(noise.mul_(o.policy_noise).clamp_(-o.noise_clip, o.noise_clip)).clamp_(-1.0, 1.0)
            target = b.reward + b.discount * self.critic_target(b.next_state, action).amin(0)
        q = self.critic(b.state, b.action)
        critic_loss = (q - target).square()
        self.critic.step(mean_rows(critic_loss))
        metrics = {"q": q, "target": target, "critic_loss": critic_loss.sum(0)}
        if self.next_update % o.policy_every == 0:
            metrics |= self.improve(b.state, b.action)
            self.critic_target.soft_update(self.critic, o.tau)
            self.actor_target.soft_update(self.actor, o.tau)
        return metrics

    def improve(self, state: Tensor, data: Tensor) -> dict[str, Tensor]:
        """One step of the actor."""
        action = self.actor(state).tanh()
        clone = (action - data).square().mean(-1)
        loss = clone
        if self.o.alpha:
            q = self.critic(state, action, member=0)
            weight = self.o.alpha / q.detach().abs().mean(-1, keepdim=True).clamp_min(1e-8)
            loss = clone - weight * q
        self.actor.step(mean_rows(loss))
        return {"clone_error": clone, "actor_loss": loss}


class Td3Bc(NearLog[Td3BcOptions]):
    """TD3 with a behaviour-cloning term.

    Source: Fujimoto and Gu, A Minimalist Approach to Offline RL, equations 3 to 5; order and defaults of CORL
    td3_bc.py.
    """

    method = "TD3+BC"
