"""AWAC: an off-policy critic, and an actor that copies the data's actions weighted by their advantage."""

from __future__ import annotations

import math
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

_LOG_STD_RANGE = (-20.0, 2.0)
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Awac(Learner):
    """Advantage-weighted actor-critic.

    y = r + discount min_i Q'_i(s', a'), a' sampled from the policy and clipped; the actor minimises
    -mean(w log pi(a|s)) with w = min(exp(A / lambda), 100) and A = min_i Q_i(s, a) - min_i Q_i(s, a ~ pi), both with
    the online critics. The Gaussian's mean is not squashed, its log-std is state-free.

    Source: Nair et al., AWAC: Accelerating Online RL with Offline Datasets, algorithm 1; details of CORL awac.py.
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
        hidden: tuple[int, ...] = (256, 256, 256),
        temperature: float = 0.3333,
        weight_clip: float = 100.0,
        lr: float = 3e-4,
        tau: float = 0.005,
        normalize: bool = False,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: int = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights and samples.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per update.
            hidden: widths of all networks.
            temperature: lambda; 0.3333 locomotion, 0.1 AntMaze, Adroit and Maze2d.
            weight_clip: upper bound of the weights.
            lr: step size of everything.
            tau: Polyak rate of the target critics.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}, expected a positive number")
        size, actions = state_size(io, "AWAC"), io.action_dim
        self.io, self.batch_size = io, batch_size
        self._temperature, self._clip, self._lr, self._tau = temperature, weight_clip, lr, tau
        self._generator = generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None
        critic_shape = MlpShape(2, size + actions, tuple(hidden), 1, False, "critic.")
        actor_shape = MlpShape(1, size, tuple(hidden), actions, False, "actor.")
        self._critic_params = FlatParams(critic_shape.shapes(), device=device)
        self._actor_params = FlatParams({**actor_shape.shapes(), "log_std": (1, actions)}, device=device)
        critic_shape.initialise(self._critic_params, generator)
        actor_shape.initialise(self._actor_params, generator)
        self._target_params = self._critic_params.twin()
        options = {"kernel": kernel, "matmul": matmul}
        self._critic = build_mlp(critic_shape, self._critic_params, **options)
        self._target = build_mlp(critic_shape, self._target_params, **options)
        self._actor = build_mlp(actor_shape, self._actor_params, **options)
        self.policy = MeanPolicy(
            io,
            actor_shape,
            self._actor_params,
            seed=seed + 1,
            normalizer=self.norm,
            squash=False,
            log_std="log_std",
            log_std_range=_LOG_STD_RANGE,
        )
        self._state = LearnerState(
            "AWAC",
            metrics_every=metrics_every,
            parts={
                "critic": self._critic_params,
                "target": self._target_params,
                "actor": self._actor_params,
                "policy": self.policy,
                "generator": generator,
            },
            networks=(self._critic, self._target, self._actor),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and bounds; called once, before the first update."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        self._state.bound = facts.return_bound

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of critics, then of the actor, on one batch.

        Returns:
            The latest metrics: train/q, train/target, train/critic_loss, train/actor_loss, train/advantage,
            train/weight, train/std.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
        """
        wanted = self._state.tick()
        rows = split(next(batches), 1, self.norm)
        state, action, next_state = rows.state[0], rows.action[0], rows.next_state[0]
        size, width = action.shape
        log_std = self._actor_params.view["log_std"].detach()[0]
        bounded = log_std.clamp(*_LOG_STD_RANGE)
        noise = torch.randn(2 * size, width, generator=self._generator, device=action.device)
        mean = self._actor.forward(torch.cat([state, next_state]))[0]
        sampled = torch.addcmul(mean, noise, bounded.exp()).clamp_(-1.0, 1.0)

        next_q = self._target.forward(torch.cat([next_state, sampled[size:]], dim=1))[..., 0].amin(0)
        target = torch.addcmul(rows.reward[0], rows.discount[0], next_q)
        x = torch.cat([state, action], dim=1)
        q = self._critic.forward(x)[..., 0]
        diff = q - target
        self._critic.backward((diff * (2.0 / size))[..., None])
        self._critic_params.adam(self._lr)
        self._critic.refresh()

        both = torch.cat([x, torch.cat([state, sampled[:size]], dim=1)])
        values = self._critic.forward(both)[..., 0].amin(0)
        advantage = values[:size] - values[size:]
        weight = (advantage / self._temperature).exp_().clamp_(max=self._clip)
        loss = self._actor_step(mean[:size], action, weight, log_std, bounded)
        self._target_params.blend(self._critic_params, self._tau)
        self._target.refresh()
        if not wanted:
            return self._state.report(None)
        return self._state.report(
            {
                "q": q.mean(),
                "target": target.mean(),
                "critic_loss": diff.square().sum(0).mean(),
                "actor_loss": loss.mean(),
                "advantage": advantage.mean(),
                "weight": weight.mean(),
                "std": bounded.exp().mean(),
            }
        )

    def _actor_step(self, mean: Tensor, action: Tensor, weight: Tensor, log_std: Tensor, bounded: Tensor) -> Tensor:
        """One step towards the weighted data; (B,) weighted negative log-densities."""
        size, width = action.shape
        precision = (-2.0 * bounded).exp()
        diff = mean - action
        square = diff.square() * precision
        loss = weight * (0.5 * square.sum(-1) + bounded.sum() + width * _HALF_LOG_TAU)
        scale = (weight / size)[:, None]
        self._actor_params.grad_view["log_std"][0] = ((1.0 - square) * scale).sum(0) * (bounded == log_std)
        self._actor.backward((diff * precision * scale)[None], rows=slice(0, size))
        self._actor_params.adam(self._lr)
        self._actor.refresh()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)
