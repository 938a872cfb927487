"""Implicit Q-learning on what was seen so far, with a bisimulation loss that shapes the memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.history import HistoryEncoder, HistoryPolicy
from robot_rl.policies.nets.learner import LogLearner, LogOptions
from robot_rl.policies.nets.net import step
from robot_rl.policies.nets.rows import as_windows
from robot_rl.policies.offline.iql import expectile_loss
from robot_rl.types import IOSpec, Metrics, Needs, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Part, Positive, Share


def bisimulation_loss(
    z: Tensor, reward: Tensor, mean: Tensor, std: Tensor, other: Tensor, discount: Tensor, weight: Tensor
) -> Tensor:
    """Mean of weight (|z_i - z_j|_1 - |r_i - r_j| - discount W2_ij)^2 over pairs (i, other[i]).

    W2 is the distance of the predicted successors' Gaussians, sqrt(|mean_i - mean_j|^2 + |std_i - std_j|^2).

    Args:
        z: (B, W) with gradient.
        reward: (B,).
        mean: (B, W) of the predicted next z, without gradient.
        std: (B, W).
        other: (B,) int64 partner of every row.
        discount: (B,) of the pair; 0 where either ends.
        weight: (B,) how comparable the two actions are.

    Source: Zhang et al., Learning Invariant Representations without Reconstruction (DBC), equation 4.
    """
    near = (z - z[other]).abs().sum(-1)
    apart = ((mean - mean[other]).square().sum(-1) + (std - std[other]).square().sum(-1) + 1e-12).sqrt()
    target = (reward - reward[other]).abs() + discount * apart
    return (weight * (near - target.detach()).square()).mean()


class HistoryIqlOptions(LogOptions):
    """Of IQL with a memory."""

    batch_size: Count = 64
    """Windows per update, of `history` steps each."""
    history: Count = 10
    """Observations that are remembered."""
    width: Count = 128
    """Of the memory."""
    expectile: Part = 0.7
    """Of the value loss."""
    beta: NotNegative = 3.0
    """Inverse temperature of the policy's weights."""
    weight_clip: Positive = 100.0
    """Largest weight of a row."""
    bisimulation: NotNegative = 0.1
    """Weight of that loss; with 0 it is still measured."""
    action_scale: Positive = 0.5
    """Distance of actions at which a pair counts 1/e."""
    tau: Mixing = 0.005
    """Polyak rate of the target critics."""
    explore: Share = 0.0
    """Noise of the policy when it acts stochastically."""
    seeds: Annotated[int, Field(ge=1, le=1)] = 1
    """One run per learner: its policy remembers for one."""


class HistoryIql(LogLearner[HistoryIqlOptions]):
    """IQL whose networks read z_t, a recurrent summary of the last `history` observations and actions.

    For robots whose observation is not the state: hidden speeds, delays, a cue that was shown before. Windows of
    `history` steps are drawn; every step of a window is learnt from, with as much past as the window holds, and the
    policy remembers as many when it acts. The critics train the encoder; value and actor read it. The bisimulation loss
    draws together histories that earn the same and lead to the same; pairs with different actions count
    exp(-|a_i - a_j|^2 / action_scale^2).

    Metrics: train/q, train/value, train/value_loss, train/critic_loss, train/actor_loss, train/bisimulation,
    train/latent_loss.

    Source: Kostrikov et al., Implicit Q-Learning; Zhang et al., Learning Invariant Representations (bisimulation).
    Joining both, the weights of pairs and `bisimulation` 0.1 are ours.
    """

    method = "history IQL"

    def __init__(
        self, options: HistoryIqlOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        """Build networks for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of initial weights and pairs.
            device: torch device.
            gamma: discount of the bisimulation's successors; elsewhere the data's `discount` is used.
        """
        super().__init__(options, io, seed=seed, device=device)
        self.gamma = gamma

    @classmethod
    def needs(cls, options: HistoryIqlOptions, io: IOSpec) -> Needs:
        """Windows of a log."""
        return Needs(rows=options.batch_size, window=options.history)

    def build(self) -> None:
        """A memory; value, twin critics, actor and a model of the next memory behind it."""
        o, w, a = self.o, self.o.width, self.actions
        self.encoder = self.keep(HistoryEncoder(self.size, a, w, lr=o.lr, generator=self.generator))
        self.value = self.net("value", w)
        self.critic = self.net("critic", w + a, members=2)
        self.actor = self.net("actor", w, a, decay=o.actor_decay)
        self.latent = self.net("latent", w + a, 2 * w)
        self.target = self.target_copy("target", self.critic)
        self.policy = HistoryPolicy(
            self.io, self.encoder, self.actor, history=o.history, norm=self.norm, noise=o.explore, seed=self.seed + 1
        )

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of everything on one batch of windows; the means of losses are over the steps B that count."""
        o, batch = self.o, as_windows(next(batches), self.o.history)
        mask = batch.mask.float()
        action, reward, discount, share = (x.flatten(0, 1) for x in (batch.action, batch.reward, batch.discount, mask))
        share = share / share.sum().clamp_min(1.0)  # (B,)
        state, after = batch.obs["state"], batch.next_obs["state"]
        if self.norm is not None:
            state, after = self.norm(state), self.norm(after)
        # next_obs of a step is the obs of the one behind it, and the true successor where an episode or window ends.
        seen = torch.cat([state[:, :1], after], 1)
        before = torch.cat([torch.zeros_like(batch.action[:, :1]), batch.action], 1)
        memory = self.encoder(seen, before)
        z, z_after = memory[:, :-1], memory[:, 1:].detach()
        rows, fixed = z.flatten(0, 1), z.detach().flatten(0, 1)  # (B, width): the critics alone train the memory

        with torch.no_grad():
            q_low = self.target(fixed, action).amin(0)
            target = reward + discount * self.value(z_after.flatten(0, 1))
        value = self.value(fixed)
        value_loss = expectile_loss(q_low - value, o.expectile) @ share
        q = self.critic(rows, action)
        critic_loss = (q - target).square().mean(0) @ share
        weight = (o.beta * (q_low - value.detach())).exp().clamp(max=o.weight_clip)
        actor_loss = (weight * (self.actor(fixed).tanh() - action).square().sum(-1)) @ share
        bisimulation, latent_loss = self._successors(batch, z, z_after, mask)
        loss = value_loss + critic_loss + actor_loss + latent_loss + o.bisimulation * bisimulation
        step(loss, self.encoder, self.value, self.critic, self.actor, self.latent)
        self.target.soft_update(self.critic, o.tau)
        measured = {"q": q.detach().mean(0) @ share, "value": value.detach() @ share, "bisimulation": bisimulation}
        losses = {"value_loss": value_loss, "critic_loss": critic_loss, "actor_loss": actor_loss}
        return self.metrics(**measured, **losses, latent_loss=latent_loss)

    def _successors(self, batch: Transitions, z: Tensor, z_after: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Bisimulation loss and the latent model's, of the last step of every window."""
        rows = torch.arange(len(mask), device=mask.device)
        last = (mask.sum(1).long() - 1).clamp_min(0)
        here, goal = z[rows, last], z_after[rows, last]
        action, reward = batch.action[rows, last], batch.reward[rows, last]
        alive = (batch.discount[rows, last] > 0).to(reward)
        mean, log_std = self.latent(here.detach(), action).chunk(2, -1)
        log_std = log_std.clamp(-5.0, 2.0)
        error = (goal - mean) * (-log_std).exp()
        known = mask[rows, last] * alive
        latent_loss = ((0.5 * error.square() + log_std).mean(-1) * known).sum() / known.sum().clamp_min(1.0)
        other = torch.randperm(len(rows), generator=self.generator, device=mask.device)
        apart = (action - action[other]).square().sum(-1)
        weight = (-apart / self.o.action_scale**2).exp() * mask[rows, last] * mask[rows, last][other]
        discount = self.gamma * alive * alive[other]
        pairs = bisimulation_loss(here, reward, mean.detach(), log_std.detach().exp(), other, discount, weight)
        return pairs, latent_loss
