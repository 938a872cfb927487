"""Implicit Q-learning: expectile regression instead of a maximum over actions that the data does not hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.mlp import Dropout, MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import Rows, split, state_size
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Transitions

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def expectile_loss(diff: Tensor, expectile: float) -> tuple[Tensor, Tensor]:
    """|expectile - 1(diff < 0)| diff^2, and its derivative by `diff`; 0.5 is half the squared error.

    Args:
        diff: (...) target minus prediction.
        expectile: in (0, 1); larger values lean towards the maximum.

    Source: Kostrikov et al., Offline RL with Implicit Q-Learning, equation 4.
    """
    weight = torch.where(diff < 0, 1.0 - expectile, expectile)
    weighted = weight * diff
    return weighted * diff, weighted.mul_(2.0)


class Iql(Learner):
    """Implicit Q-learning.

    V(s) regresses on the target critics' minimum with an expectile loss, Q(s, a) on r + discount V(s'), the policy
    copies the data's actions weighted by exp(beta (Q - V)). No action outside the data is ever evaluated.

    Source: Kostrikov et al., Offline RL with Implicit Q-Learning; order of updates, defaults and policy (tanh on the
    mean, state-free log-std, cosine step size, dropout of the actor) of ikostrikov/implicit_q_learning.
    """

    consumes = "transitions"
    method = "IQL"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 256,
        seeds: int = 1,
        hidden: tuple[int, ...] = (256, 256),
        expectile: float = 0.7,
        beta: float = 3.0,
        weight_clip: float = 100.0,
        lr: float = 3e-4,
        tau: float = 0.005,
        actor_decay: int = 1_000_000,
        order: str = "jax",
        deterministic: bool = False,
        log_std_min: float = -5.0,
        dropout: float = 0.0,
        normalize: bool = True,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: int = 100,
        value_norm: bool = False,
        huber: float | None = None,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per update of one seed.
            seeds: how many independent runs are trained side by side, each on rows of its own.
            hidden: widths of all networks.
            expectile: of the value loss; 0.7 locomotion and manipulation, 0.9 AntMaze.
            beta: inverse temperature of the policy's weights; 3 locomotion, 10 AntMaze, 0.5 Adroit and kitchen.
            weight_clip: upper bound of the weights.
            lr: step size of everything.
            tau: Polyak rate of the target critics.
            actor_decay: updates over which the actor's step size falls to 0 as a cosine; 0 keeps it.
            order: "jax" (value, actor, critics, each with the newest value) or "corl" (one value pass, before its
                own step, serves all; a little faster).
            deterministic: squared error instead of log-density.
            log_std_min: lower limit of the log standard deviation.
            dropout: share of the actor's hidden units that each of its steps leaves out; 0.1 Adroit and kitchen.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto"; see `MlpShape` networks.
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.
            value_norm: LayerNorm in the value network.
            huber: threshold of a Huber loss for the critics, or None for squared error.

        Raises:
            ValueError: an option outside its range.
        """
        if not 0.0 < expectile < 1.0:
            raise ValueError(f"expectile is {expectile}, expected a number in (0, 1)")
        if order not in ("jax", "corl"):
            raise ValueError(f"order is '{order}', expected 'jax' or 'corl'")
        if min(seeds, batch_size) < 1:
            raise ValueError(f"seeds is {seeds} and batch_size {batch_size}, expected at least 1")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout is {dropout}, expected a number in [0, 1)")
        size, actions = state_size(io, self.method), io.action_dim
        self.io, self.seeds, self.batch_size = io, seeds, batch_size * seeds
        self._expectile, self._beta, self._clip = expectile, beta, weight_clip
        self._lr, self._tau, self._decay, self._order, self._huber = lr, tau, actor_decay, order, huber
        self._deterministic, self._log_std_range = deterministic, (log_std_min, 2.0)
        generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None

        value_shape = MlpShape(seeds, size, tuple(hidden), 1, value_norm, "value.")
        critic_shape = MlpShape(2 * seeds, size + actions, tuple(hidden), 1, False, "critic.")
        actor_shape = MlpShape(seeds, size, tuple(hidden), actions, False, "actor.")
        self._value_params = FlatParams(value_shape.shapes(), device=device)
        self._critic_params = FlatParams(critic_shape.shapes(), device=device)
        self._actor_params = FlatParams({**actor_shape.shapes(), "log_std": (seeds, actions)}, device=device)
        value_shape.initialise(self._value_params, generator)
        critic_shape.initialise(self._critic_params, generator)
        actor_shape.initialise(self._actor_params, generator)
        self._target_params = self._critic_params.twin()
        self._value = build_mlp(value_shape, self._value_params, kernel=kernel, matmul=matmul)
        self._critic = build_mlp(critic_shape, self._critic_params, kernel=kernel, matmul=matmul)
        self._target = build_mlp(critic_shape, self._target_params, kernel=kernel, matmul=matmul)
        self._actor = build_mlp(actor_shape, self._actor_params, kernel=kernel, matmul=matmul)
        self.policy = MeanPolicy(
            io,
            actor_shape,
            self._actor_params,
            seed=seed + 1,
            normalizer=self.norm,
            log_std=None if deterministic else "log_std",
            log_std_range=self._log_std_range,
        )
        self._generator = generator
        self._drop = Dropout(dropout, generator) if dropout else None
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                "value": self._value_params,
                "critic": self._critic_params,
                "target": self._target_params,
                "actor": self._actor_params,
                "policy": self.policy,
                "generator": generator,
            },
            networks=(self._value, self._critic, self._target, self._actor),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and bounds; called once, before the first update."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        self._state.bound = facts.return_bound

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of value, actor and critics on one batch.

        Returns:
            The latest metrics: train/q, train/value, train/value_loss, train/critic_loss, train/actor_loss,
            train/advantage, train/weight.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
        """
        wanted = self._state.tick()
        rows = split(next(batches), self.seeds, self.norm)
        x = torch.cat([rows.state, rows.action], dim=-1)
        q = self.ensemble(self._target.forward(x)).amin(1)
        value, next_value, value_loss = self._value_step(rows, x, q)
        advantage = q - value
        weight = (self._beta * advantage).exp_().clamp_(max=self._clip)
        actor_loss = self._actor_step(rows, weight)
        target = self._target_of(rows, next_value)
        critic_loss = self._critic_step(x, target)
        self._target_params.blend(self._critic_params, self._tau)
        self._target.refresh()
        if not wanted:
            return self._state.report(None)
        return self._state.report(
            {
                "q": q.mean(),
                "value": value.mean(),
                "value_loss": value_loss.mean(),
                "critic_loss": critic_loss.mean(),
                "actor_loss": actor_loss.mean(),
                "advantage": advantage.mean(),
                "weight": weight.mean(),
            }
        )

    def ensemble(self, out: Tensor) -> Tensor:
        """(S E, B, 1) critic outputs -> (S, E, B)."""
        return out.view(self.seeds, -1, out.shape[1])

    def _target_of(self, rows: Rows, next_value: Tensor) -> Tensor:
        """(S, B) targets of the critics."""
        return torch.addcmul(rows.reward, rows.discount, next_value)

    def _value_rows(self, rows: Rows, x: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """States (S, B', n) and their targets (S, B') for the value step; the batch itself."""
        return rows.state, q

    def with_random_actions(self, rows: Rows, q: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The batch's states and values, and `count` times as many with uniform actions (methods that extend this)."""
        if not count:
            return rows.state, q
        again = rows.state.repeat(1, count, 1)
        shape = (*again.shape[:2], self.io.action_dim)
        action = torch.rand(shape, generator=self._generator, device=again.device) * 2 - 1
        more = self.ensemble(self._target.forward(torch.cat([again, action], dim=-1))).amin(1)
        return torch.cat([rows.state, again], dim=1), torch.cat([q, more], dim=1)

    def _value_loss(self, q: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (S, B') of values towards q, and its derivative by the value."""
        loss, slope = expectile_loss(q - value, self._expectile)
        return loss, slope.neg_()

    def _value_step(self, rows: Rows, x: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns V(s), V(s') (S, B), of the step's new or old network as `order` says, and the loss."""
        size = q.shape[1]
        state, target = self._value_rows(rows, x, q)
        both, extra = self._order == "corl", state.shape[1]
        out = self._value.forward(torch.cat([state, rows.next_state], dim=1) if both else state)[..., 0]
        loss, d_value = self._value_loss(target, out[:, :extra])
        part = slice(0, extra) if both else None
        self._value.backward(d_value.mul_(1.0 / extra)[..., None], rows=part)
        self._value_params.adam(self._lr)
        self._value.refresh()
        if both:
            return out[:, :size], out[:, extra:], loss
        fresh = self._value.forward(torch.cat([rows.state, rows.next_state], dim=1))[..., 0]
        return fresh[:, :size], fresh[:, size:], loss

    def _actor_step(self, rows: Rows, weight: Tensor) -> Tensor:
        mean = self._actor.forward(rows.state, drop=self._drop).tanh_()
        diff = mean - rows.action
        scale = (weight * (1.0 / weight.shape[1]))[..., None]
        if self._deterministic:
            loss = weight * diff.square().sum(-1)
            d_mean = diff * scale * 2.0
            self._actor_params.grad_view["log_std"].zero_()
        else:
            log_std = self._actor_params.view["log_std"].detach()
            bounded = log_std.clamp(*self._log_std_range)
            precision = (-2.0 * bounded).exp()[:, None]
            square = diff.square() * precision
            loss = weight * (0.5 * square.sum(-1) + bounded.sum(-1, keepdim=True) + diff.shape[-1] * _HALF_LOG_TAU)
            d_mean = diff * precision * scale
            inside = (bounded == log_std).to(loss.dtype)
            self._actor_params.grad_view["log_std"].copy_(((1.0 - square) * scale).sum(1) * inside)
        self._actor.backward(d_mean.mul_(1.0 - mean.square()))
        self._actor_params.adam(self._state.falling(self._lr, self._decay))
        self._actor.refresh()
        return loss

    def _critic_step(self, x: Tensor, target: Tensor) -> Tensor:
        """Squared error (or Huber), mean over the batch, mean over the two critics."""
        diff = self.ensemble(self._critic.forward(x)) - target[:, None]
        d_q = diff if self._huber is None else diff.clamp(-self._huber, self._huber)
        d_q = d_q * (1.0 / diff.shape[-1])
        self._critic.backward(d_q.reshape(-1, diff.shape[-1], 1))
        self._critic_params.adam(self._lr)
        self._critic.refresh()
        return diff.square()

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)
