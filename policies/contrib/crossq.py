"""CrossQ: soft actor-critic without target networks; batch normalisation sees both halves of the update at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.contrib.crossq_norm import Renorm, RenormCritic
from robot_rl.policies.nets.distributions import squashed_sample
from robot_rl.policies.nets.learner import NetLearner, NetOptions
from robot_rl.policies.nets.net import mean_rows, step
from robot_rl.policies.nets.rows import split, state_size
from robot_rl.policies.nets.squashed_policy import SquashedGaussianPolicy
from robot_rl.types import IOSpec, Metrics, Transitions
from robot_rl.types.options import Count, NotNegative, Positive


class CrossQOptions(NetOptions):
    """Of CrossQ."""

    hidden: tuple[Count, ...] = (512, 512)
    """Widths of the critics; 2 x 2048 in the source."""
    actor_hidden: tuple[Count, ...] = (256, 256)
    """Widths of the actor."""
    critics: Count = 2
    """E."""
    lr: NotNegative = 1e-3
    """Step size of everything."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Of the critics' Adam."""
    actor_delay: Count = 3
    """Actor and temperature learn in every n-th update."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Of the running moments."""
    warm: Annotated[int, Field(ge=0)] = 100_000
    """Updates of plain batch normalisation before batch renormalisation."""
    init_alpha: Positive = 1.0
    """Temperature at the start."""


class CrossQ(NetLearner[CrossQOptions]):
    """Soft actor-critic whose critics bootstrap from themselves.

    One pass over [(s, a); (s', a')] normalises both halves by the moments of both, which is what makes learning without
    target networks stable: y = r + discount (min Q(s', a') - alpha log pi), from the second half without gradient; the
    first half learns. The actor climbs min Q with running moments.

    Metrics: train/q, train/target, train/critic_loss, train/alpha, and train/entropy of the last actor step's batch.

    Source: Bhatt et al., CrossQ: Batch Normalization in Deep RL for Greater Sample Efficiency and Simplicity
    (adityab/CrossQ). Where we differ: no normalisation in the actor; the actor's Adam keeps beta1 0.9.
    """

    method = "CrossQ"

    def __init__(self, options: CrossQOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build networks for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of initial weights and samples.
            device: torch device.

        Raises:
            ValueError: images, or no "state".
        """
        super().__init__(options, io, seed=seed, device=device)
        o, size, actions = options, state_size(io, self.method), io.action_dim
        self.actor = self.net("actor", size, 2 * actions, hidden=o.actor_hidden)
        renorm = Renorm(o.momentum, o.warm)
        self.critic = RenormCritic(
            o.critics, size + actions, o.hidden, renorm, generator=self.generator, lr=o.lr, beta1=o.beta1
        )
        self.keep(self.critic)
        self.temperature = self.number("log_alpha", math.log(o.init_alpha), lr=o.lr)
        self.policy = SquashedGaussianPolicy(io, self.actor.shape, self.actor.params, seed=seed + 1)
        self.state.include({"policy": self.policy})

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of critics and, every `actor_delay`-th time, of actor and temperature on one batch."""
        b = split(next(batches), 1, None)
        state, action, after = b.state[0], b.action[0], b.next_state[0]
        alpha = self.temperature["log_alpha"].detach().exp()
        with torch.no_grad():
            next_action, next_logp = self.sample(after)
        both = torch.cat([torch.cat([state, action], 1), torch.cat([after, next_action], 1)])
        q, next_q = self.critic.forward(both, train=True).chunk(2, dim=1)
        target = b.reward[0] + b.discount[0] * (next_q.detach().amin(0) - alpha * next_logp)
        critic_loss = (q - target).square()
        self.critic.step(mean_rows(critic_loss))
        found = {"q": q, "target": target, "critic_loss": critic_loss.sum(0), "alpha": alpha}
        if self.next_update % self.o.actor_delay == 0:
            action, logp = self.sample(state)
            value = self.critic.forward(torch.cat([state, action], 1), train=False).amin(0)
            temperature_loss = -self.temperature["log_alpha"] * (logp.detach().mean() - self.actions)
            step(mean_rows(alpha * logp - value) + temperature_loss.sum(), self.actor, self.temperature)
            found["entropy"] = -logp
        elif self.due:
            with torch.no_grad():
                found["entropy"] = -self.sample(state)[1]
        return self.metrics(**found)

    def sample(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """An action (B, A) of the policy and its log-density (B,)."""
        return squashed_sample(self.actor(state), self.noise((len(state), self.actions)))
