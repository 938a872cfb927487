"""TD3+BC: an off-policy actor-critic whose actor also stays near the data's actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import split, state_size
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Transitions


class Td3Bc(Learner):
    """TD3 with a behaviour-cloning term.

    Target y = r + discount min_i Q'_i(s', clip(pi'(s') + noise)); the actor, every second update, minimises
    -lambda Q_1(s, pi(s)) + (pi(s) - a)^2 with lambda = alpha / mean |Q_1|. Targets move with the actor's steps.

    Source: Fujimoto and Gu, A Minimalist Approach to Offline RL, equations 3 to 5; order and defaults of CORL
    td3_bc.py.
    """

    consumes = "transitions"

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
        alpha: float = 2.5,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        policy_every: int = 2,
        lr: float = 3e-4,
        actor_decay: int = 0,
        tau: float = 0.005,
        explore: float = 0.1,
        normalize: bool = True,
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
            batch_size: rows per update of one seed.
            seeds: how many independent runs are trained side by side, each on rows of its own.
            hidden: widths of all networks.
            alpha: weight of the critic against the cloning term; 0 is behaviour cloning.
            policy_noise: standard deviation of the noise on the target policy's action.
            noise_clip: its bound.
            policy_every: the actor learns in every n-th update.
            lr: step size of everything.
            actor_decay: updates over which the actor's step size falls to 0 as a cosine (ours); 0: as published.
            tau: Polyak rate of the targets, at the actor's steps.
            explore: noise of the policy when it acts stochastically (online fine-tuning).
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if alpha < 0 or min(seeds, batch_size, policy_every) < 1:
            raise ValueError(
                f"alpha, seeds, batch_size and policy_every are {alpha}, {seeds}, {batch_size}, {policy_every}; "
                "expected alpha >= 0 and the others >= 1"
            )
        size, actions = state_size(io, "TD3+BC"), io.action_dim
        self.io, self.seeds, self.batch_size = io, seeds, batch_size * seeds
        self._alpha, self._noise, self._noise_clip = alpha, policy_noise, noise_clip
        self._every, self._lr, self._tau, self._size = policy_every, lr, tau, size
        self._decay = actor_decay
        self._generator = generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None

        critic_shape = MlpShape(2 * seeds, size + actions, tuple(hidden), 1, False, "critic.")
        actor_shape = MlpShape(seeds, size, tuple(hidden), actions, False, "actor.")
        self._critic_params = FlatParams(critic_shape.shapes(), device=device)
        self._actor_params = FlatParams(actor_shape.shapes(), device=device)
        critic_shape.initialise(self._critic_params, generator)
        actor_shape.initialise(self._actor_params, generator)
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
            "TD3+BC",
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
            The latest metrics: train/q, train/target, train/critic_loss, train/actor_loss, train/clone_error.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
        """
        wanted = self._state.tick()
        rows = split(next(batches), self.seeds, self.norm)
        action = self._actor_target.forward(rows.next_state).tanh_()
        noise = torch.randn(action.shape, generator=self._generator, device=action.device)
        action.add_(noise.mul_(self._noise).clamp_(-self._noise_clip, self._noise_clip)).clamp_(-1.0, 1.0)
        next_q = self._twins(self._critic_target.forward(torch.cat([rows.next_state, action], dim=-1))).amin(1)
        target = torch.addcmul(rows.reward, rows.discount, next_q)

        q = self._twins(self._critic.forward(torch.cat([rows.state, rows.action], dim=-1)))
        diff = q - target[:, None]
        size = diff.shape[-1]
        self._critic.backward((diff * (2.0 / size)).view(-1, size, 1))
        self._critic_params.adam(self._lr)
        self._critic.refresh()
        metrics = {"q": q.mean(), "target": target.mean(), "critic_loss": diff.square().sum(1).mean()} if wanted else {}
        if self._state.updates % self._every == 0:
            self._actor_step(rows.state, rows.action, metrics if wanted else None)
            self._critic_target_params.blend(self._critic_params, self._tau)
            self._actor_target_params.blend(self._actor_params, self._tau)
            self._critic_target.refresh()
            self._actor_target.refresh()
        return self._state.report(metrics)

    def _twins(self, out: Tensor) -> Tensor:
        """(2 S, B, 1) -> (S, 2, B)."""
        return out.view(self.seeds, 2, out.shape[1])

    def _actor_step(self, state: Tensor, data: Tensor, metrics: dict[str, Tensor] | None) -> None:
        action = self._actor.forward(state).tanh_()
        size, width = action.shape[1:]
        diff = action - data
        d_action = diff * (2.0 / (size * width))
        if self._alpha:
            x = torch.cat([state, action], dim=-1)
            q = self._critic.forward(x, members=range(0, 2 * self.seeds, 2))  # the first of each pair
            weight = self._alpha / q.abs().mean(1, keepdim=True).clamp_min(1e-8)
            inputs = slice(self._size, None)
            d_q = self._critic.backward(weight.expand_as(q) * (-1.0 / size), weights=False, inputs=inputs)
            assert d_q is not None
            d_action.add_(d_q)
            if metrics is not None:
                metrics["actor_loss"] = -(weight * q).mean() + diff.square().mean()
        if metrics is not None:
            metrics["clone_error"] = diff.square().mean()
        self._actor.backward(d_action.mul_(1.0 - action.square()))
        self._actor_params.adam(self._state.falling(self._lr, self._decay))
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
