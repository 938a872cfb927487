"""ReBRAC: TD3+BC with the cloning penalty in the target too, LayerNorm critics and larger batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.initial import small_outputs
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import Rows, split, state_size
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Transitions


class ReBrac(Learner):
    """Behaviour-regularised actor-critic, revisited.

    y = r + discount (min_i Q'_i(s', a') - beta2 |a' - a'_data|^2), a' the target policy's action plus clipped noise and
    a'_data the action that the log took next (no penalty where there is none); the actor, every second update,
    minimises beta1 |pi(s) - a|^2 - lambda min_i Q_i(s, pi(s)) with lambda = 1 / mean |min Q|. Squared norms are sums
    over dimensions.

    Source: Tarasov et al., Revisiting the Minimalist Approach to Offline RL, equations 4 and 5; CORL rebrac.py.
    Where we differ: the critics' LayerNorm stands before each ReLU, not behind it.
    """

    consumes = "transitions"
    reads = ("next_action",)

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 1024,
        seeds: int = 1,
        hidden: tuple[int, ...] = (256, 256, 256),
        actor_penalty: float = 0.01,
        critic_penalty: float = 0.01,
        normalize_q: bool = True,
        layer_norm: bool = True,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        policy_every: int = 2,
        lr: float = 1e-3,
        actor_lr: float | None = None,
        actor_decay: int = 0,
        tau: float = 0.005,
        explore: float = 0.0,
        normalize: bool = False,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: int = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights and noise.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per update of one seed; 1024 locomotion, 256 elsewhere.
            seeds: how many independent runs are trained side by side, each on rows of its own.
            hidden: widths of all networks.
            actor_penalty: beta1.
            critic_penalty: beta2.
            normalize_q: divide the critic's term of the actor loss by mean |Q|.
            layer_norm: in the critics.
            policy_noise: standard deviation of the noise on the target policy's action.
            noise_clip: its bound.
            policy_every: actor and targets move in every n-th update.
            lr: step size of the critics.
            actor_lr: step size of the actor; None means `lr`.
            actor_decay: updates over which the actor's step size falls to 0 as a cosine (ours); 0: as published.
            tau: Polyak rate of the targets, at the actor's steps.
            explore: noise of the policy when it acts stochastically.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if min(actor_penalty, critic_penalty) < 0 or min(seeds, batch_size, policy_every) < 1:
            raise ValueError(
                f"penalties are {actor_penalty} and {critic_penalty}, seeds {seeds}, batch_size {batch_size}, "
                f"policy_every {policy_every}; expected penalties >= 0 and the others >= 1"
            )
        size, actions = state_size(io, "ReBRAC"), io.action_dim
        self.io, self.seeds, self.batch_size = io, seeds, batch_size * seeds
        self._beta1, self._beta2, self._normalize_q = actor_penalty, critic_penalty, normalize_q
        self._noise, self._noise_clip, self._every, self._size = policy_noise, noise_clip, policy_every, size
        self._lr, self._actor_lr, self._tau = lr, lr if actor_lr is None else actor_lr, tau
        self._decay = actor_decay
        self._generator = generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None

        critic_shape = MlpShape(2 * seeds, size + actions, tuple(hidden), 1, layer_norm, "critic.")
        actor_shape = MlpShape(seeds, size, tuple(hidden), actions, False, "actor.")
        self._critic_params = FlatParams(critic_shape.shapes(), device=device)
        self._actor_params = FlatParams(actor_shape.shapes(), device=device)
        small_outputs(critic_shape, self._critic_params, generator, last=3e-3)
        small_outputs(actor_shape, self._actor_params, generator, last=1e-3)
        self._critic_target_params = self._critic_params.twin()
        self._actor_target_params = self._actor_params.twin()
        options = {"kernel": kernel, "matmul": matmul}
        self._critic = build_mlp(critic_shape, self._critic_params, **options)
        self._actor = build_mlp(actor_shape, self._actor_params, **options)
        self._critic_target = build_mlp(critic_shape, self._critic_target_params, **options)
        self._actor_target = build_mlp(actor_shape, self._actor_target_params, **options)
        self.policy = MeanPolicy(
            io, actor_shape, self._actor_params, seed=seed + 1, normalizer=self.norm, noise=explore
        )
        self._state = LearnerState(
            "ReBRAC",
            metrics_every=metrics_every,
            parts={
                "critic": self._critic_params,
                "actor": self._actor_params,
                "critic_target": self._critic_target_params,
                "actor_target": self._actor_target_params,
                "policy": self.policy,
                "generator": generator,
            },
            networks=(self._critic, self._actor, self._critic_target, self._actor_target),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and bounds; called once, before the first update."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        self._state.bound = facts.return_bound

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One critic step, and every `policy_every`-th time one of the actor and the targets.

        Returns:
            The latest metrics: train/q, train/target, train/critic_loss, train/penalty, train/actor_loss,
            train/clone_error.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
            ValueError: the data lacks the next action, which only logs have.
        """
        wanted = self._state.tick()
        rows = split(next(batches), self.seeds, self.norm)
        target, penalty = self._target(rows)
        q = self._twins(self._critic.forward(torch.cat([rows.state, rows.action], dim=-1)))
        diff = q - target[:, None]
        size = diff.shape[-1]
        self._critic.backward((diff * (2.0 / size)).view(-1, size, 1))
        self._critic_params.adam(self._lr)
        self._critic.refresh()
        metrics: dict[str, Tensor] = {}
        if wanted:
            metrics = {"q": q.mean(), "target": target.mean(), "critic_loss": diff.square().sum(1).mean()}
            metrics["penalty"] = penalty.mean()
        if self._state.updates % self._every == 0:
            self._actor_step(rows.state, rows.action, metrics if wanted else None)
            self._critic_target_params.blend(self._critic_params, self._tau)
            self._actor_target_params.blend(self._actor_params, self._tau)
            self._critic_target.refresh()
            self._actor_target.refresh()
        return self._state.report(metrics)

    def _target(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Targets (S, B) and the penalty (S, B) in them."""
        action = self._actor_target.forward(rows.next_state).tanh_()
        noise = torch.randn(action.shape, generator=self._generator, device=action.device)
        action.add_(noise.mul_(self._noise).clamp_(-self._noise_clip, self._noise_clip)).clamp_(-1.0, 1.0)
        next_q = self._twins(self._critic_target.forward(torch.cat([rows.next_state, action], dim=-1))).amin(1)
        if not self._beta2:
            return torch.addcmul(rows.reward, rows.discount, next_q), torch.zeros_like(next_q)
        if "next_action" not in rows.extras:
            raise ValueError(
                "ReBRAC reads the action that followed (extras 'next_action' and 'next_action_valid'), which only logs "
                "have; set critic_penalty=0 for other data"
            )
        penalty = (action - rows.extras["next_action"]).square().sum(-1) * rows.extras["next_action_valid"]
        return torch.addcmul(rows.reward, rows.discount, next_q - self._beta2 * penalty), penalty

    def _twins(self, out: Tensor) -> Tensor:
        """(2 S, B, 1) -> (S, 2, B)."""
        return out.view(self.seeds, 2, out.shape[1])

    def _actor_step(self, state: Tensor, data: Tensor, metrics: dict[str, Tensor] | None) -> None:
        action = self._actor.forward(state).tanh_()
        size = action.shape[1]
        diff = action - data
        q = self._twins(self._critic.forward(torch.cat([state, action], dim=-1)))
        low = q.amin(1)
        weight = torch.ones_like(low[:, :1])
        if self._normalize_q:
            weight = 1.0 / low.abs().mean(1, keepdim=True).clamp_min(1e-8)
        chosen = (q == low[:, None]).to(q.dtype)
        d_q = chosen / chosen.sum(1, keepdim=True) * (weight * (-1.0 / size))[:, None]
        d_action = self._critic.backward(d_q.view(-1, size, 1), weights=False, inputs=slice(self._size, None))
        assert d_action is not None
        d_action.add_(diff, alpha=2.0 * self._beta1 / size)
        if metrics is not None:
            error = diff.square().sum(-1)
            metrics["actor_loss"] = (self._beta1 * error - weight * low).mean()
            metrics["clone_error"] = error.mean()
        self._actor.backward(d_action.mul_(1.0 - action.square()))
        self._actor_params.adam(self._state.falling(self._actor_lr, self._decay))
        self._actor.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)
