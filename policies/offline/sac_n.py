"""SAC-N: soft actor-critic with so many critics that their minimum is pessimistic outside the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import SquashedSample
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.initial import small_outputs
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import Rows, split, state_size
from robot_rl.policies.nets.soft_actor import SoftActor
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Transitions


class SacN(Learner):
    """Soft actor-critic with the minimum over N critics.

    y = r + discount (min_i Q'_i(s', a') - alpha log pi(a'|s')); the critics' loss is the sum over N of the mean squared
    error; the actor minimises alpha log pi - min_i Q_i. Order: temperature, actor, critics, targets.

    With `clone_weight` w the actor minimises alpha log pi - min_i Q_i + w mean|min_i Q_i| |a - a_log|^2, a its own
    sample and the mean without gradient. That is the term and the scale of TD3+BC, whose alpha is 1 / (w A) here (A:
    width of the action). Holding EDAC to the log so is an idea of Jelley et al. (The Critic is Critical, 2024:
    EDAC+BC), who divide each part by its own size instead.

    Source: An et al., Uncertainty-Based Offline RL with Diversified Q-Ensemble, section 3; details of CORL sac_n.py.
    """

    consumes = "transitions"
    method = "SAC-N"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 256,
        hidden: tuple[int, ...] = (256, 256, 256),
        critics: int = 10,
        lr: float = 3e-4,
        actor_decay: int = 0,
        clone_weight: float = 0.0,
        tau: float = 0.005,
        init_alpha: float = 1.0,
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
            critics: N; 10 halfcheetah, 20 walker2d, 200 to 500 hopper, 25 AntMaze and Maze2d, 100 Adroit.
            lr: step size of everything.
            actor_decay: updates over which the actor's step size falls to 0 as a cosine (ours); 0: as published.
            clone_weight: of the squared distance to the log's action in the actor's loss, in units of mean |min Q|;
                0: as published.
            tau: Polyak rate of the target critics.
            init_alpha: temperature at the start; where rewards are far below 1 the entropy would drown them at first.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd" (all critics in one batched product).
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if critics < 1 or batch_size < 1 or init_alpha <= 0:
            raise ValueError(
                f"critics is {critics}, batch_size {batch_size} and init_alpha {init_alpha}; expected at least 1, at "
                "least 1 and more than 0"
            )
        if actor_decay < 0:
            raise ValueError(f"actor_decay is {actor_decay}, expected a number of updates, or 0 for none")
        if clone_weight < 0:
            raise ValueError(f"clone_weight is {clone_weight}, expected 0 (nothing holds the actor to the log) or more")
        size = state_size(io, self.method)
        self._clone_weight = clone_weight
        self.io, self.batch_size, self.critics = io, batch_size, critics
        self._lr, self._decay, self._tau, self._size = lr, actor_decay, tau, size
        self._generator = generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None
        self._actor = SoftActor(
            io,
            size,
            hidden,
            generator=generator,
            seed=seed + 1,
            norm=self.norm,
            lr=lr,
            alpha_lr=lr,
            init_alpha=init_alpha,
            log_std_min=-5.0,
            kernel=kernel,
            matmul=matmul,
        )
        small_outputs(self._actor.shape, self._actor.params, generator, last=1e-3)
        shape = MlpShape(critics, size + io.action_dim, tuple(hidden), 1, False, "critic.")
        self._critic_params = FlatParams(shape.shapes(), device=device)
        small_outputs(shape, self._critic_params, generator, last=3e-3)
        self._target_params = self._critic_params.twin()
        self._critic = build_mlp(shape, self._critic_params, kernel=kernel, matmul=matmul)
        self._target = build_mlp(shape, self._target_params, kernel=kernel, matmul=matmul)
        self.policy = self._actor.policy
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                **self._actor.parts(),
                "critic": self._critic_params,
                "target": self._target_params,
                "generator": generator,
            },
            networks=(self._actor.network, self._critic, self._target),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and bounds; called once, before the first update."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        self._state.bound = facts.return_bound

    def unbounded(self) -> None:
        """Values may exceed what the log's rewards allow (rows from a model)."""
        self._state.bound = math.inf

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of temperature, actor, critics and targets on one batch.

        Returns:
            The latest metrics: train/q, train/q_std (between critics), train/target, train/critic_loss, train/alpha,
            train/entropy, train/actor_loss.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
        """
        wanted = self._state.tick()
        self._actor.lr = self._state.falling(self._lr, self._decay)
        rows = split(next(batches), 1, self.norm)
        state, action, next_state = rows.state[0], rows.action[0], rows.next_state[0]
        size = len(state)
        raw = self._actor.raw(state)
        sample = self._actor.draw(raw)
        self._actor.temper(sample.logp)
        alpha = self._actor.alpha
        q_new = self._critic.forward(torch.cat([state, sample.action], dim=1))[..., 0]
        low = q_new.amin(0)
        chosen = (q_new == low).to(q_new.dtype)
        d_q = chosen.div_(chosen.sum(0) * -size)
        d_action = self._critic.backward(d_q[..., None], weights=False, inputs=slice(self._size, None))
        assert d_action is not None
        if self._clone_weight:
            pull = low.abs().mean() * (2.0 * self._clone_weight / size)
            d_action = torch.addcmul(d_action, sample.action - action, pull)
        more = self._actor_step(rows, raw, sample, d_action, alpha)

        after = self._actor.draw(self._actor.raw(next_state))
        next_q = self._target.forward(torch.cat([next_state, after.action], dim=1))[..., 0].amin(0)
        target = torch.addcmul(rows.reward[0], rows.discount[0], next_q - alpha * after.logp)
        metrics = self._critic_step(torch.cat([state, action], dim=1), target)
        self._critic_params.adam(self._lr)
        self._critic.refresh()
        self._target_params.blend(self._critic_params, self._tau)
        self._target.refresh()
        if not wanted:
            return self._state.report(None)
        return self._state.report(
            {
                **metrics,
                **more,
                "target": target.mean(),
                "alpha": alpha,
                "entropy": -sample.logp.mean(),
                "actor_loss": (alpha * sample.logp - low).mean(),
            }
        )

    def _actor_step(
        self, rows: Rows, raw: Tensor, sample: SquashedSample, d_action: Tensor, alpha: Tensor
    ) -> dict[str, Tensor]:
        """Move the actor, given the gradient of -mean(min Q) by its actions; further metrics."""
        self._actor.step(sample, d_action, alpha)
        return {}

    def _critic_step(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Fill the critics' gradients for rows x (B, n + A) and targets (B,)."""
        q = self._critic.forward(x)[..., 0]
        diff = q - target
        self._critic.backward((diff * (2.0 / len(target)))[..., None])
        spread = q.std(0, correction=0).mean()
        return {"q": q.mean(), "q_std": spread, "critic_loss": diff.square().mean(1).sum()}

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)
