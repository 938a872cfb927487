"""SAC-N: soft actor-critic with so many critics that their minimum is pessimistic outside the data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from robot_rl.policies.nets.initial import small_outputs
from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.rows import Rows
from robot_rl.policies.nets.soft_learner import SoftLogLearner, SoftLogOptions
from robot_rl.types import Metrics, Transitions
from robot_rl.types.options import Count, NotNegative, Positive


class SacNOptions(SoftLogOptions):
    """Of SAC-N."""

    hidden: tuple[Count, ...] = (256, 256, 256)
    """Widths of the hidden layers of all networks."""
    critics: Count = 10
    """N; 10 halfcheetah, 20 walker2d, 200 to 500 hopper, 25 AntMaze and Maze2d, 100 Adroit."""
    clone_weight: NotNegative = 0.0
    """Of the squared distance to the log's action in the actor's loss, in units of mean |min Q|; 0: as published."""
    init_alpha: Positive = 1.0
    """Temperature at the start; where rewards are far below 1 the entropy would drown them at first."""
    normalize: bool = False
    """Standardise states by the data's moments."""


N = TypeVar("N", bound=SacNOptions)


class EnsembleActorCritic(SoftLogLearner[N]):
    """What SAC-N shares with the methods that add a loss to it.

    Metrics: train/q, train/q_std (between critics), train/target, train/critic_loss, train/alpha, train/entropy,
    train/actor_loss.
    """

    log_std_min = -5.0

    def build(self) -> None:
        """N critics with targets, an actor, a temperature."""
        o, s, a = self.o, self.size, self.actions
        small = [partial(small_outputs, last=last) for last in (1e-3, 3e-3)]
        self.actor = self.net("actor", s, 2 * a, decay=o.actor_decay, draw=small[0])
        self.critic = self.net("critic", s + a, members=o.critics, draw=small[1])
        self.target = self.target_copy("target", self.critic)
        self.soften(self.actor, init_alpha=o.init_alpha, lr=o.lr)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of temperature, actor, critics and targets, in this order, on one batch."""
        b = self.rows(next(batches))
        raw = self.actor(b.state)
        action, logp = self.sample(raw)
        self.temperature.step(self.temperature_loss(logp))
        alpha = self.alpha
        low = self.critic(b.state, action).amin(0)
        actor_loss = alpha * logp - low
        self.actor.step(mean_rows(actor_loss + self.actor_terms(b, raw, action, low.detach())))

        with torch.no_grad():
            next_action, next_logp = self.sample(self.actor(b.next_state))
            next_q = self.target(b.next_state, next_action).amin(0)
            target = b.reward + b.discount * (next_q - alpha * next_logp)
        found = self.step_critics(b, target)
        self.target.soft_update(self.critic, self.o.tau)
        return self.metrics(**found, target=target, alpha=alpha, entropy=-logp, actor_loss=actor_loss)

    def actor_terms(self, b: Rows, raw: Tensor, action: Tensor, low: Tensor) -> Tensor | float:
        """(S, B) what joins alpha log pi - min Q in the actor's loss.

        Args:
            b: the batch.
            raw: (S, B, 2A) what the actor puts out.
            action: (S, B, A) its sample.
            low: (S, B) min Q of it, a constant.
        """
        if not self.o.clone_weight:
            return 0.0
        scale = low.abs().mean(-1, keepdim=True)
        return self.o.clone_weight * scale * (action - b.action).square().sum(-1)

    def step_critics(self, b: Rows, target: Tensor) -> dict[str, Tensor]:
        """One step of the critics towards targets (S, B)."""
        q = self.critic(b.state, b.action)
        critic_loss = (q - target).square()
        self.critic.step(mean_rows(critic_loss))
        return self.measure(q, critic_loss)

    def measure(self, q: Tensor, critic_loss: Tensor) -> dict[str, Tensor]:
        """Metrics of values (N, S, B) and their losses, where they are due."""
        if not self.due:
            return {}
        q = q.detach()
        return {"q": q, "q_std": q.std(0, correction=0), "critic_loss": critic_loss.sum(0)}


class SacN(EnsembleActorCritic[SacNOptions]):
    """Soft actor-critic with the minimum over N critics.

    y = r + discount (min_i Q'_i(s', a') - alpha log pi(a'|s')); the critics' loss is the sum over N of the mean squared
    error; the actor minimises alpha log pi - min_i Q_i. Order: temperature, actor, critics, targets.

    With `clone_weight` w the actor minimises alpha log pi - min_i Q_i + w mean|min_i Q_i| |a - a_log|^2, a its own
    sample and the mean without gradient. That is the term and the scale of TD3+BC, whose alpha is 1 / (w A) here (A:
    width of the action). Holding EDAC to the log so is an idea of Jelley et al. (The Critic is Critical, 2024:
    EDAC+BC), who divide each part by its own size instead.

    Source: An et al., Uncertainty-Based Offline RL with Diversified Q-Ensemble, section 3; details of CORL sac_n.py.
    """

    method = "SAC-N"
