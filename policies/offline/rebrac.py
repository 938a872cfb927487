"""ReBRAC: TD3+BC with the cloning penalty in the target too, LayerNorm critics and larger batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.initial import small_outputs
from robot_rl.policies.nets.learner import LogLearner, LogOptions
from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.rows import Rows
from robot_rl.types import IOSpec, Metrics, Needs, Transitions
from robot_rl.types.options import Count, Share

NotNegative = Annotated[float, Field(ge=0)]


class ReBracOptions(LogOptions):
    """Of ReBRAC."""

    batch_size: Count = 1024
    """Rows per update of one seed; 1024 locomotion, 256 elsewhere."""
    hidden: tuple[Count, ...] = (256, 256, 256)
    """Widths of the hidden layers of all networks."""
    actor_penalty: NotNegative = 0.01
    """beta1."""
    critic_penalty: NotNegative = 0.01
    """beta2."""
    normalize_q: bool = True
    """Divide the critic's term of the actor loss by mean |Q|."""
    layer_norm: bool = True
    """In the critics."""
    policy_noise: NotNegative = 0.2
    """Standard deviation of the noise on the target policy's action."""
    noise_clip: NotNegative = 0.5
    """Its bound."""
    policy_every: Count = 2
    """Actor and targets move in every n-th update."""
    lr: NotNegative = 1e-3
    """Step size of the critics."""
    actor_lr: NotNegative | None = None
    """Step size of the actor; null for lr."""
    tau: Share = 0.005
    """Polyak rate of the targets, at the actor's steps."""
    explore: NotNegative = 0.0
    """Noise of the policy when it acts stochastically."""
    normalize: bool = False
    """Standardise states by the data's moments."""


class ReBrac(LogLearner[ReBracOptions]):
    """Behaviour-regularised actor-critic, revisited.

    y = r + discount (min_i Q'_i(s', a') - beta2 |a' - a'_data|^2), a' the target policy's action plus clipped noise and
    a'_data the action that the log took next (no penalty where there is none); the actor, every second update,
    minimises beta1 |pi(s) - a|^2 - lambda min_i Q_i(s, pi(s)) with lambda = 1 / mean |min Q|. Squared norms are sums
    over dimensions.

    Metrics: train/q, train/target, train/critic_loss, train/penalty, train/actor_loss, train/clone_error.

    Source: Tarasov et al., Revisiting the Minimalist Approach to Offline RL, equations 4 and 5; CORL rebrac.py.
    Where we differ: the critics' LayerNorm stands before each ReLU, not behind it.
    """

    method = "ReBRAC"

    @classmethod
    def needs(cls, options: ReBracOptions, io: IOSpec) -> Needs:
        """Rows with the action that the log took next."""
        return replace(super().needs(options, io), extras=("next_action",))

    def build(self) -> None:
        """Twin critics, an actor, and a target of each."""
        o, s, a = self.o, self.size, self.actions
        draw = [partial(small_outputs, last=last) for last in (3e-3, 1e-3)]
        self.critic = self.net("critic", s + a, members=2, layer_norm=o.layer_norm, draw=draw[0])
        self.actor = self.net("actor", s, a, lr=o.actor_lr, decay=o.actor_decay, draw=draw[1])
        self.critic_target = self.target_copy("critic_target", self.critic)
        self.actor_target = self.target_copy("actor_target", self.actor)
        self.policy = self.mean_policy(self.actor, noise=o.explore)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One critic step, and every `policy_every`-th time one of the actor and the targets."""
        o, b = self.o, self.rows(next(batches))
        target, penalty = self.bootstrap(b)
        q = self.critic(b.state, b.action)
        critic_loss = (q - target).square()
        self.critic.step(mean_rows(critic_loss))
        metrics = {"q": q, "target": target, "critic_loss": critic_loss.sum(0), "penalty": penalty}
        if self.next_update % o.policy_every == 0:
            metrics |= self.improve(b.state, b.action)
            self.critic_target.soft_update(self.critic, o.tau)
            self.actor_target.soft_update(self.actor, o.tau)
        return self.metrics(**metrics)

    @torch.no_grad()
    def bootstrap(self, b: Rows) -> tuple[Tensor, Tensor]:
        """Targets (S, B) and the penalty (S, B) in them.

        Raises:
            ValueError: the data lacks the next action, which only logs have.
        """
        o = self.o
        action = self.actor_target(b.next_state).tanh_()
        noise = torch.randn(action.shape, generator=self.generator, device=action.device)
        action.add_(noise.mul_(o.policy_noise).clamp_(-o.noise_clip, o.noise_clip)).clamp_(-1.0, 1.0)
        next_q = self.critic_target(b.next_state, action).amin(0)
        if not o.critic_penalty:
            return b.reward + b.discount * next_q, torch.zeros_like(next_q)
        if "next_action" not in b.extras:
            raise ValueError(
                "ReBRAC reads the action that followed (extras 'next_action' and 'next_action_valid'), which only logs "
                "have; set critic_penalty=0 for other data"
            )
        penalty = (action - b.extras["next_action"]).square().sum(-1) * b.extras["next_action_valid"]
        return b.reward + b.discount * (next_q - o.critic_penalty * penalty), penalty

    def improve(self, state: Tensor, data: Tensor) -> dict[str, Tensor]:
        """One step of the actor."""
        action = self.actor(state).tanh()
        low = self.critic(state, action).amin(0)
        clone = (action - data).square().sum(-1)
        scale = low.detach().abs().mean(-1, keepdim=True).clamp_min(1e-8) if self.o.normalize_q else 1.0
        loss = self.o.actor_penalty * clone - low / scale
        self.actor.step(mean_rows(loss))
        return {"clone_error": clone, "actor_loss": loss}
