"""Implicit Q-learning on what was seen so far, with a bisimulation loss that shapes the memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.history import HistoryEncoder, HistoryPolicy
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mlp import AutogradMlp, MlpShape
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import state_size
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Part, Positive, Rate, Share, Whole


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


class HistoryIql(Learner):
    """IQL whose networks read z_t, a recurrent summary of the last `history` observations and actions.

    For robots whose observation is not the state: hidden speeds, delays, a cue that was shown before. Windows of
    `history` steps are drawn; every step of a window is learnt from, with as much past as the window holds, and the
    policy remembers as many when it acts. The critics train the encoder; value and actor read it. The bisimulation loss
    draws together histories that earn the same and lead to the same; pairs with different actions count
    exp(-|a_i - a_j|^2 / action_scale^2).

    Source: Kostrikov et al., Implicit Q-Learning; Zhang et al., Learning Invariant Representations (bisimulation).
    Joining both, the weights of pairs and `bisimulation` 0.1 are ours.
    """

    consumes = "transitions"
    method = "history IQL"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 64,
        history: Count = 10,
        width: Count = 128,
        hidden: tuple[Count, ...] = (256, 256),
        expectile: Part = 0.7,
        beta: NotNegative = 3.0,
        weight_clip: Positive = 100.0,
        bisimulation: NotNegative = 0.1,
        action_scale: Positive = 0.5,
        lr: Rate = 3e-4,
        tau: Mixing = 0.005,
        explore: Share = 0.0,
        normalize: bool = True,
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights and pairs.
            device: torch device.
            gamma: discount of the bisimulation's successors; elsewhere the data's `discount` is used.
            batch_size: windows per update, of `history` steps each.
            history: observations that are remembered.
            width: of the memory.
            hidden: widths of all networks behind it.
            expectile: of the value loss.
            beta: inverse temperature of the policy's weights.
            weight_clip: upper bound of the weights.
            bisimulation: weight of that loss; with 0 it is still measured.
            action_scale: distance of actions at which a pair counts 1/e.
            lr: step size of everything.
            tau: Polyak rate of the target critics.
            explore: noise of the policy when it acts stochastically.
            normalize: standardise states by the data's moments.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if not 0.0 < expectile < 1.0 or bisimulation < 0 or action_scale <= 0:
            raise ValueError(
                f"expectile, bisimulation and action_scale are {expectile}, {bisimulation}, {action_scale}; expected "
                "(0, 1), at least 0 and above 0"
            )
        if min(history, batch_size, width) < 1:
            raise ValueError(f"history, batch_size, width are {history}, {batch_size}, {width}, expected at least 1")
        size, actions = state_size(io, self.method), io.action_dim
        self.io, self.batch_size, self.window = io, batch_size, history
        self._gamma, self._expectile, self._beta, self._clip = gamma, expectile, beta, weight_clip
        self._bisimulation, self._scale, self._lr, self._tau = bisimulation, action_scale, lr, tau
        self._generator = generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None
        self._encoder = HistoryEncoder(size, actions, width, device=device, generator=generator)
        self._nets: dict[str, AutogradMlp] = {}
        for name, members, inputs, outputs in (
            ("value", 1, width, 1),
            ("critic", 2, width + actions, 1),
            ("actor", 1, width, actions),
            ("latent", 1, width + actions, 2 * width),
        ):
            shape = MlpShape(members, inputs, tuple(hidden), outputs, False, f"{name}.")
            params = FlatParams(shape.shapes(), device=device)
            shape.initialise(params, generator)
            self._nets[name] = AutogradMlp(shape, params)
        self._target = AutogradMlp(self._nets["critic"].shape, self._nets["critic"].params.twin())
        self.policy = HistoryPolicy(
            io, self._encoder, self._nets["actor"], history=history, norm=self.norm, noise=explore, seed=seed + 1
        )
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                **{name: net.params for name, net in self._nets.items()},
                "encoder": self._encoder.params,
                "target": self._target.params,
                "policy": self.policy,
                "generator": generator,
            },
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and bounds; called once, before the first update."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        self._state.bound = facts.return_bound

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of everything on one batch of windows.

        Returns:
            The latest metrics: train/q, train/value, train/value_loss, train/critic_loss, train/actor_loss,
            train/bisimulation, train/latent_loss.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
            ValueError: the batch holds windows of another length.
        """
        wanted = self._state.tick()
        batch = _windows(next(batches), self.window)
        mask = batch.mask.to(torch.float32)
        share = mask / mask.sum().clamp_min(1.0)
        state, after = batch.obs["state"], batch.next_obs["state"]
        if self.norm is not None:
            state, after = self.norm(state), self.norm(after)
        # next_obs of a step is the obs of the one behind it, and the true successor where an episode or window ends.
        seen = torch.cat([state[:, :1], after], 1)
        before = torch.cat([torch.zeros_like(batch.action[:, :1]), batch.action], 1)
        z_all = self._encoder(seen, before)
        z, z_after = z_all[:, :-1], z_all[:, 1:].detach()
        fixed = z.detach()

        with torch.no_grad():
            q_low = self._of(self._target, fixed, batch.action).amin(0)
            next_value = self._of(self._nets["value"], z_after)[0]
            target = batch.reward + batch.discount * next_value
        value = self._of(self._nets["value"], fixed)[0]
        gap = q_low - value
        lean = torch.where(gap.detach() < 0, 1.0 - self._expectile, self._expectile)
        value_loss = (lean * gap.square() * share).sum()
        q = self._of(self._nets["critic"], z, batch.action)
        critic_loss = ((q - target).square().mean(0) * share).sum()
        weight = (self._beta * (q_low - value.detach())).exp().clamp(max=self._clip)
        mean = self._flat(self._nets["actor"], fixed)[0].tanh().view_as(batch.action)
        actor_loss = (weight * (mean - batch.action).square().sum(-1) * share).sum()
        bisimulation, latent_loss = self._successors(batch, z, fixed, z_after, mask)
        loss = value_loss + critic_loss + actor_loss + latent_loss
        if self._bisimulation:
            loss = loss + self._bisimulation * bisimulation
        self._step(loss)
        if not wanted:
            return self._state.report(None)
        return self._state.report(
            {
                "q": (q.detach().mean(0) * share).sum(),
                "value": (value.detach() * share).sum(),
                "value_loss": value_loss,
                "critic_loss": critic_loss,
                "actor_loss": actor_loss,
                "bisimulation": bisimulation,
                "latent_loss": latent_loss,
            }
        )

    def _successors(
        self, batch: Transitions, z: Tensor, fixed: Tensor, z_after: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Bisimulation loss and the latent model's, of the last step of every window."""
        rows = torch.arange(len(mask), device=mask.device)
        last = (mask.sum(1).long() - 1).clamp_min(0)
        here, goal = fixed[rows, last], z_after[rows, last]
        action, reward = batch.action[rows, last], batch.reward[rows, last]
        alive = (batch.discount[rows, last] > 0).to(reward)
        mean, log_std = self._flat(self._nets["latent"], here, action)[0].chunk(2, -1)
        log_std = log_std.clamp(-5.0, 2.0)
        error = (goal - mean) * (-log_std).exp()
        known = mask[rows, last] * alive
        latent = ((0.5 * error.square() + log_std).mean(-1) * known).sum() / known.sum().clamp_min(1.0)
        other = torch.randperm(len(rows), generator=self._generator, device=mask.device)
        apart = (action - action[other]).square().sum(-1)
        weight = (-apart / self._scale**2).exp() * mask[rows, last] * mask[rows, last][other]
        loss = bisimulation_loss(
            z[rows, last],
            reward,
            mean.detach(),
            log_std.detach().exp(),
            other,
            self._gamma * alive * alive[other],
            weight,
        )
        return loss, latent

    def _flat(self, net: AutogradMlp, *parts: Tensor) -> Tensor:
        """(members, rows, outputs) of parts (..., n) whose leading axes are merged."""
        x = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts], -1)
        return net.compute(x.expand(net.shape.members, *x.shape))

    def _of(self, net: AutogradMlp, z: Tensor, action: Tensor | None = None) -> Tensor:
        """(members, B, L) of a network with one output."""
        out = self._flat(net, z) if action is None else self._flat(net, z, action)
        return out[..., 0].view(net.shape.members, *z.shape[:2])

    def _step(self, loss: Tensor) -> None:
        groups = [self._encoder.params, *(net.params for net in self._nets.values())]
        leaves = [(params, name) for params in groups for name in params.shapes]
        grads = torch.autograd.grad(loss, [params.view[name] for params, name in leaves])
        with torch.no_grad():
            for (params, name), grad in zip(leaves, grads):
                params.grad_view[name].copy_(grad)
            for params in groups:
                params.adam(self._lr)
            self._target.params.blend(self._nets["critic"].params, self._tau)

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(dict(state))


def _windows(batch: Transitions, length: int) -> Transitions:
    """The batch, with a window axis where windows are of one step.

    Raises:
        ValueError: windows of another length.
    """
    if batch.reward.dim() == 2 and batch.reward.shape[1] == length:
        return batch
    if batch.reward.dim() == 1 and length == 1:
        wide = {name: getattr(batch, name)[:, None] for name in ("action", "reward", "discount", "mask")}
        obs, after = ({"state": part["state"][:, None]} for part in (batch.obs, batch.next_obs))
        flags = {name: getattr(batch, name)[:, None] for name in ("terminated", "truncated", "intervened")}
        return Transitions(obs=obs, next_obs=after, extras={}, **wide, **flags)
    raise ValueError(
        f"rewards have shape {tuple(batch.reward.shape)}, expected (B, {length}): draw windows of policy.history steps"
    )
