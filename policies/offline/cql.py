"""CQL: soft actor-critic whose critics are pushed down on actions outside the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import SquashedSample, squash_grad
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.initial import orthogonal
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import Rows, split, state_size
from robot_rl.policies.nets.soft_actor import SoftActor
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Transitions

_EDGE = 1.0 - 1e-6


def squashed_logp_grad(raw: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density (B,) of given actions (B, A) under the squashed Gaussian `raw` (B, 2A), and its gradient by `raw`.

    u = atanh(a): d logp / d mean = (u - mean) / std^2, d logp / d log_std = ((u - mean) / std)^2 - 1.
    """
    width = action.shape[-1]
    mean, log_std = raw[..., :width], raw[..., width:]
    bounded = log_std.clamp(-20.0, 2.0)
    bound = action.clamp(-_EDGE, _EDGE)
    z = (torch.atanh(bound) - mean) * (-bounded).exp()
    logp = (-0.5 * z.square() - bounded - 0.5 * math.log(2 * math.pi)).sum(-1) - torch.log1p(-bound.square()).sum(-1)
    inside = (bounded == log_std).to(raw.dtype)
    return logp, torch.cat([z * (-bounded).exp(), (z.square() - 1.0) * inside], dim=-1)


class Cql(Learner):
    """Conservative Q-learning, CQL(H).

    Each critic's loss is (Q - y)^2 + alpha_cql (logsumexp over actions outside the data - Q(s, a)), the logsumexp over
    uniform actions and the policy's at s and s', all valued at s with importance weights. Gradients are written out:
    that of the logsumexp is the softmax over the actions.

    Source: Kumar et al., Conservative Q-Learning for Offline RL, equation 4 and appendix F; details of CORL cql.py.
    Where we differ: the learned offset and factor of the log-std are folded into the output layer.
    """

    consumes = "transitions"
    method = "CQL"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 256,
        hidden: tuple[int, ...] = (256, 256, 256),
        critic_hidden: tuple[int, ...] | None = None,
        alpha_cql: float = 10.0,
        samples: int = 10,
        temperature: float = 1.0,
        importance: bool = True,
        lagrange_gap: float | None = None,
        clip_low: float = -math.inf,
        clip_high: float = math.inf,
        max_target_backup: bool = False,
        backup_entropy: bool = False,
        bc_steps: int = 0,
        lr: float = 3e-4,
        actor_lr: float = 3e-5,
        tau: float = 0.005,
        normalize: bool = True,
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
            hidden: widths of the actor.
            critic_hidden: widths of the critics; None means `hidden`. AntMaze: five layers.
            alpha_cql: weight of the conservative term; 10 locomotion, 5 AntMaze, 1 Adroit.
            samples: actions of each of the three kinds per state.
            temperature: of the logsumexp.
            importance: subtract the log-density of each sampled action (CQL(H)); else also Q(s, a) is in the logsumexp.
            lagrange_gap: wanted size of the conservative difference, reached by a dual variable (0.8 AntMaze, 5
                Maze2d), or None for a fixed weight.
            clip_low: lower limit of the difference; -200 AntMaze.
            clip_high: upper limit.
            max_target_backup: the target takes the best of the sampled next actions.
            backup_entropy: the target contains the entropy term.
            bc_steps: first updates in which the actor copies the data.
            lr: step size of the critics.
            actor_lr: step size of actor and temperature; 1e-4 AntMaze and Adroit.
            tau: Polyak rate of the target critics.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if alpha_cql < 0 or min(samples, batch_size) < 1 or not temperature > 0 or clip_low > clip_high:
            raise ValueError(
                f"alpha_cql {alpha_cql}, samples {samples}, batch_size {batch_size}, temperature {temperature}, clip "
                f"[{clip_low}, {clip_high}]; expected alpha_cql >= 0, positive numbers and an ordered clip"
            )
        size, actions = state_size(io, self.method), io.action_dim
        self.io, self.batch_size = io, batch_size
        self._alpha_cql, self._samples, self._t = alpha_cql, samples, temperature
        self._importance, self._gap = importance, lagrange_gap
        self._clip, self._max_backup, self._backup_entropy = (clip_low, clip_high), max_target_backup, backup_entropy
        self._bc_steps, self._lr, self._tau, self._size = bc_steps, lr, tau, size
        self._generator = generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None
        self._actor = SoftActor(
            io,
            size,
            hidden,
            generator=generator,
            seed=seed + 1,
            norm=self.norm,
            lr=actor_lr,
            alpha_lr=actor_lr,
            kernel=kernel,
            matmul=matmul,
        )
        orthogonal(self._actor.shape, self._actor.params, generator)
        with torch.no_grad():  # CORL's offset of the log-std
            self._actor.params.view[f"actor.bias{len(hidden)}"][0, actions:] = -1.0
        shape = MlpShape(2, size + actions, tuple(critic_hidden or hidden), 1, False, "critic.")
        self._critic_params = FlatParams(shape.shapes(), device=device)
        orthogonal(shape, self._critic_params, generator)
        self._target_params = self._critic_params.twin()
        self._dual = FlatParams({"log_alpha": (1,)}, device=device)
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
                "dual": self._dual,
                "generator": generator,
            },
            networks=(self._actor.network, self._critic, self._target),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and bounds; called once, before the first update."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        self._state.bound = facts.return_bound

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of everything on one batch; every loss is built from the networks as they were before it.

        Returns:
            The latest metrics: train/q, train/target, train/critic_loss, train/conservative (difference that is pushed
            down), train/alpha, train/entropy, train/actor_loss, train/dual (with lagrange_gap).

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
        """
        wanted = self._state.tick()
        rows = split(next(batches), 1, self.norm)
        state, next_state = rows.state[0], rows.next_state[0]
        size = len(state)
        raw = self._actor.raw(torch.cat([state, next_state]))
        sample = self._actor.draw(raw[:size])
        alpha = self._actor.alpha
        target = self._bootstrap(rows, raw[size:], alpha)
        here = self._actor.draw(raw[:size], self._samples)
        there = self._actor.draw(raw[size:], self._samples)

        d_action, low = self._climb(state, sample)
        metrics = self._critic_step(rows, target, here, there)
        self._actor.temper(sample.logp)
        if self._state.updates <= self._bc_steps:
            actor_loss = self._clone_step(sample, rows.action[0], raw[:size], alpha)
        else:
            self._actor.step(sample, d_action, alpha, rows=slice(0, size))
            actor_loss = (alpha * sample.logp - low).mean()
        self._critic_params.adam(self._lr)
        self._critic.refresh()
        self._target_params.blend(self._critic_params, self._tau)
        self._target.refresh()
        if not wanted:
            return self._state.report(None)
        return self._state.report(
            {
                **metrics,
                "target": target.mean(),
                "alpha": alpha,
                "entropy": -sample.logp.mean(),
                "actor_loss": actor_loss,
            }
        )

    def _bootstrap(self, rows: Rows, raw: Tensor, alpha: Tensor) -> Tensor:
        """(B,) targets."""
        next_state = rows.next_state[0]
        after = self._actor.draw(raw, self._samples if self._max_backup else 1)
        count = after.action.shape[0]
        x = torch.cat([next_state.expand(count, *next_state.shape), after.action], dim=-1)
        q = self._target.forward(x.flatten(0, 1))[..., 0].amin(0).view(count, -1)
        q, best = q.max(0)
        if self._backup_entropy:
            q = q - alpha * after.logp.gather(0, best[None])[0]
        return torch.addcmul(rows.reward[0], rows.discount[0], q)

    def _climb(self, state: Tensor, sample: SquashedSample) -> tuple[Tensor, Tensor]:
        """Gradient of -mean(min Q) by the sampled actions (B, A), and min Q (B,)."""
        q = self._critic.forward(torch.cat([state, sample.action], dim=1))[..., 0]
        low = q.amin(0)
        chosen = (q == low).to(q.dtype)
        d_q = chosen.div_(chosen.sum(0) * -len(state))
        d_action = self._critic.backward(d_q[..., None], weights=False, inputs=slice(self._size, None))
        assert d_action is not None
        return d_action, low

    def _clone_step(self, sample: SquashedSample, data: Tensor, raw: Tensor, alpha: Tensor) -> Tensor:
        """Warm-up: descend mean(alpha log pi(new) - log pi(data)); scores the data's action, not a sample."""
        logp, d_raw = squashed_logp_grad(raw, data)
        size = len(data)
        weight = (alpha / size).expand(size, 1)
        d_entropy = squash_grad(sample, torch.zeros_like(sample.action), weight)
        self._actor.descend(d_entropy - d_raw / size, rows=slice(0, size))
        return (alpha * sample.logp - logp).mean()

    def _floor(self, q: Tensor, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Values (E, K, B) of the policy's actions as they enter the logsumexp, and where their gradient lives."""
        return q, None

    def _critic_step(
        self, rows: Rows, target: Tensor, here: SquashedSample, there: SquashedSample
    ) -> dict[str, Tensor]:
        """Fill the critics' gradients."""
        state, action = rows.state[0], rows.action[0]
        size, width = action.shape
        k, t = self._samples, self._t
        free = torch.rand((k, size, width), generator=self._generator, device=action.device) * 2 - 1
        outside = torch.cat([free, there.action, here.action])  # (3 k, B, A)
        every = torch.cat([action[None], outside])
        x = torch.cat([state.expand(3 * k + 1, *state.shape), every], dim=-1).flatten(0, 1)
        out = self._critic.forward(x)[..., 0].view(2, 3 * k + 1, size)
        q, ood = out[:, 0], out[:, 1:]
        floored, alive = self._floor(ood[:, k:], rows)
        values = torch.cat([ood[:, :k], floored], dim=1)
        if self._importance:
            density = torch.cat([torch.full_like(here.logp, -width * math.log(2.0)), there.logp, here.logp])
            values = values - density
        else:
            values = torch.cat([values, q[:, None]], dim=1)
        weight = (values / t).softmax(1)
        difference = t * (values / t).logsumexp(1) - q
        inside = ((difference >= self._clip[0]) & (difference <= self._clip[1])).to(q.dtype)
        clipped = difference.clamp(*self._clip)

        scale = torch.full((), self._alpha_cql / size, device=q.device)
        if self._gap is not None:
            dual = self._dual.flat[0].exp().clamp(max=1e6)
            scale = scale * dual
            # the dual climbs: its loss is -(1/2) sum of dual alpha_cql (difference - gap)
            slope = self._alpha_cql * (clipped.mean(1) - self._gap).sum()
            self._dual.grad[0] = -0.5 * slope * dual
            self._dual.adam(self._lr)
        d_out = torch.empty_like(out)
        diff = q - target
        d_out[:, 0] = diff * (2.0 / size) - scale * inside
        d_out[:, 1:] = weight[:, : 3 * k] * (scale * inside)[:, None]
        if not self._importance:
            d_out[:, 0] += weight[:, 3 * k] * (scale * inside)
        if alive is not None:
            d_out[:, 1 + k :] *= alive
        self._critic.backward(d_out.view(2, -1, 1))
        metrics = {
            "q": q.mean(),
            "critic_loss": diff.square().mean(1).sum(),
            "conservative": clipped.mean(),
        }
        if self._gap is not None:
            metrics["dual"] = self._dual.flat[0].exp()
        if alive is not None:
            metrics["floored"] = 1.0 - alive.mean()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)
