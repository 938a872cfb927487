"""Implicit Q-learning: expectile regression instead of a maximum over actions that the data does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import huber_loss

from robot_rl.policies.nets.distributions import normal_logp
from robot_rl.policies.nets.learner import LogLearner, LogOptions
from robot_rl.policies.nets.mlp import Dropout
from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.rows import Rows
from robot_rl.types import Metrics, Transitions
from robot_rl.types.options import Number, Positive, Share


def expectile_loss(diff: Tensor, expectile: float) -> Tensor:
    """|expectile - 1(diff < 0)| diff^2; 0.5 is half the squared error.

    Args:
        diff: (...) target minus prediction.
        expectile: in (0, 1); larger values lean towards the maximum.

    Source: Kostrikov et al., Offline RL with Implicit Q-Learning, equation 4.
    """
    return torch.where(diff < 0, 1.0 - expectile, expectile) * diff.square()


class ImplicitOptions(LogOptions):
    """What methods that regress an implicit maximum may be told."""

    beta: Annotated[float, Field(ge=0)] = 3.0
    """Inverse temperature of the policy's weights; 3 locomotion, 10 AntMaze, 0.5 Adroit and kitchen."""
    weight_clip: Positive = 100.0
    """Largest weight of a row."""
    tau: Share = 0.005
    """Polyak rate of the target critics."""
    actor_decay: Annotated[int, Field(ge=0)] = 1_000_000
    """Updates over which the actor's step size falls to 0 as a cosine; 0 keeps it."""
    order: Literal["jax", "corl"] = "jax"
    """jax: value, actor, critics, each with the newest value; corl: the value before its own step serves all."""
    log_std_min: Number = -5.0
    """Lower limit of the log standard deviation."""
    value_norm: bool = False
    """LayerNorm in the value network."""
    huber: Positive | None = None
    """Threshold of a Huber loss for the critics; null for squared error."""


OptionsT = TypeVar("OptionsT", bound=ImplicitOptions)


class ImplicitQ(LogLearner[OptionsT]):
    """What IQL shares with the methods that change a loss of it: networks, order of steps, the policy's weights.

    V(s) regresses on the target critics' minimum with a loss that leans to the maximum, Q(s, a) on r + discount V(s'),
    the policy copies the data's actions weighted by exp(beta (Q - V)). No action outside the data is ever evaluated.

    Metrics: train/q, train/value, train/value_loss, train/critic_loss, train/actor_loss, train/advantage, train/weight.
    """

    deterministic: bool = False
    dropout: float = 0.0

    def build(self) -> None:
        """A value, twin critics with targets, and an actor with a state-free standard deviation."""
        o, s, a = self.o, self.size, self.actions
        self.value = self.net("value", s, layer_norm=o.value_norm)
        self.critic = self.net("critic", s + a, members=2)
        log_std = {} if self.deterministic else {"log_std": (o.seeds, a)}
        self.actor = self.net("actor", s, a, more=log_std, decay=o.actor_decay)
        self.target = self.target_copy("target", self.critic)
        self.drop = Dropout(self.dropout, self.generator) if self.dropout else None
        self.limits = (o.log_std_min, 2.0)
        self.policy = self.mean_policy(self.actor, log_std=next(iter(log_std), None), log_std_range=self.limits)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of value, actor and critics on one batch."""
        o, b = self.o, self.rows(next(batches))
        q = self.target(b.state, b.action).amin(0)
        value, next_value, value_loss = self.step_value(b, q)
        advantage = q - value
        weight = (o.beta * advantage).exp_().clamp_(max=o.weight_clip)
        actor_loss = weight * self.distance(b)
        self.actor.step(mean_rows(actor_loss))
        target, predicted = self.bootstrap(b, next_value), self.critic(b.state, b.action)
        self.critic.step(self.critic_loss(predicted, target, b))
        self.target.soft_update(self.critic, o.tau)
        losses = {"value_loss": value_loss, "actor_loss": actor_loss, "critic_loss": (predicted - target).square()}
        return self.metrics(q=q, value=value, advantage=advantage, weight=weight, **losses)

    def step_value(self, b: Rows, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step of V; (S, B) V(s) and V(s') that the others read, and the loss of every row."""
        size, fresh = q.shape[1], self.o.order == "jax"
        state, q = self.value_rows(b, q)
        value = self.value(state)
        with torch.no_grad():
            next_value = value if fresh else self.value(b.next_state)
        loss = self.value_loss(q - value)
        self.value.step(mean_rows(loss))
        if not fresh:
            return value.detach()[:, :size], next_value, loss
        with torch.no_grad():
            value = self.value(torch.cat([b.state, b.next_state], dim=1))
        return value[:, :size], value[:, size:], loss

    def value_rows(self, b: Rows, q: Tensor) -> tuple[Tensor, Tensor]:
        """States (S, B', n) and their targets (S, B') for the value step; the batch itself."""
        return b.state, q

    def value_loss(self, diff: Tensor) -> Tensor:
        """(S, B') loss of the value by target minus value."""
        raise NotImplementedError(f"{type(self).__name__}.value_loss is missing")

    def distance(self, b: Rows) -> Tensor:
        """(S, B) -log pi(a | s) of the data's actions, or their squared distance."""
        mean = self.actor(b.state, drop=self.drop).tanh()
        if self.deterministic:
            return (mean - b.action).square().sum(-1)
        return -normal_logp(b.action, mean, self.actor["log_std"].clamp(*self.limits)[:, None])

    def bootstrap(self, b: Rows, next_value: Tensor) -> Tensor:
        """(S, B) targets of the critics."""
        return torch.addcmul(b.reward, b.discount, next_value)

    def error(self, q: Tensor, target: Tensor) -> Tensor:
        """(2, S, B) half the squared error of values, or Huber's."""
        if self.o.huber is None:
            return (q - target).square() * 0.5
        return huber_loss(q, target.expand_as(q), reduction="none", delta=self.o.huber)

    def critic_loss(self, q: Tensor, target: Tensor, b: Rows) -> Tensor:
        """() of values (2, S, B): the two critics' half squared errors, or Huber's."""
        return mean_rows(self.error(q, target))

    def with_random_actions(self, b: Rows, q: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The batch's states and values, and `count` times as many with uniform actions."""
        if not count:
            return b.state, q
        again = b.state.repeat(1, count, 1)
        shape = (*again.shape[:2], self.actions)
        action = torch.rand(shape, generator=self.generator, device=again.device) * 2 - 1
        more = self.target(again, action).amin(0)
        return torch.cat([b.state, again], dim=1), torch.cat([q, more], dim=1)


class IqlOptions(ImplicitOptions):
    """Of implicit Q-learning."""

    expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7
    """Of the value loss; 0.7 locomotion and manipulation, 0.9 AntMaze."""
    deterministic: bool = False
    """Squared error instead of log-density."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the actor's hidden units that each of its steps leaves out; 0.1 Adroit and kitchen."""


class Iql(ImplicitQ[IqlOptions]):
    """Implicit Q-learning: the value is an expectile of the critics over the data's actions.

    Source: Kostrikov et al., Offline RL with Implicit Q-Learning; order of updates, defaults and policy (tanh on the
    mean, state-free log-std, cosine step size, dropout of the actor) of ikostrikov/implicit_q_learning.
    """

    method = "IQL"

    def build(self) -> None:
        """As `ImplicitQ`."""
        self.deterministic, self.dropout = self.o.deterministic, self.o.dropout
        super().build()

    def value_loss(self, diff: Tensor) -> Tensor:
        """Expectile regression."""
        return expectile_loss(diff, self.o.expectile)
