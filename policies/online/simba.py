"""SimBa: soft actor-critic with residual networks and standardised observations."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import squashed_sample
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_step import ModuleStep, load_module, module_state
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.residual import ResidualNet
from robot_rl.policies.nets.rows import split, state_size
from robot_rl.types import Action, IOSpec, Learner, Metrics, Obs, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Number, Positive, Rate, Whole


class Simba(Learner):
    """Soft actor-critic whose actor and critics are `ResidualNet`s on running-standardised states, with weight decay.

    Target: y = r + discount (min Q'(s', a') - alpha log pi(a'|s')). Larger critics then help where plain perceptrons
    get worse with size.

    Source: Lee et al., SimBa: Simplicity Bias for Scaling Up Parameters in Deep Reinforcement Learning; structure and
    numbers are **recalled**, not checked against its code. Where we differ: moments come from replayed batches.
    """

    consumes = "transitions"
    method = "SimBa"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        actor_width: Count = 128,
        actor_blocks: Count = 1,
        critic_width: Count = 512,
        critic_blocks: Count = 2,
        critics: Count = 2,
        reduce: str = "min",
        utd: Count = 2,
        lr: Rate = 1e-4,
        weight_decay: NotNegative = 1e-2,
        tau: Mixing = 0.005,
        init_alpha: Positive = 0.01,
        target_entropy: Number | Literal["auto", "half"] = "half",
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights and noise.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per step.
            actor_width: residual stream of the actor.
            actor_blocks: its blocks.
            critic_width: residual stream of each critic.
            critic_blocks: their blocks.
            critics: E.
            reduce: "min" over critics (tasks that end early), or "mean".
            utd: steps of everything per `update`, each on a batch of its own.
            lr: step size of everything (AdamW).
            weight_decay: of actor and critics.
            tau: Polyak rate.
            init_alpha: temperature at the start.
            target_entropy: a number, "half" (-A / 2) or "auto" (-A).
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        named = {"half": -io.action_dim / 2, "auto": -float(io.action_dim)}
        if isinstance(target_entropy, str) and target_entropy not in named:
            raise ValueError(f"target_entropy is '{target_entropy}', expected a number, half or auto")
        if reduce not in ("min", "mean") or min(batch_size, utd) < 1 or init_alpha <= 0:
            raise ValueError(
                f"reduce, batch_size, utd, init_alpha are '{reduce}', {batch_size}, {utd}, {init_alpha}; expected min "
                "or mean, at least 1, 1, and a positive number"
            )
        size, actions = state_size(io, self.method), io.action_dim
        self.io, self.batch_size = io, batch_size
        self._min, self._utd, self._tau, self._lr = reduce == "min", utd, tau, lr
        self._entropy = named[target_entropy] if isinstance(target_entropy, str) else float(target_entropy)
        self._generator = generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = RunningNorm(size, device=device)
        self.actor = ResidualNet(1, size, actor_width, actor_blocks, 2 * actions, generator)
        self.critic = ResidualNet(critics, size + actions, critic_width, critic_blocks, 1, generator)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self._actor_step = ModuleStep(self.actor, lr=lr, weight_decay=weight_decay)
        self._critic_step = ModuleStep(self.critic, lr=lr, weight_decay=weight_decay)
        self._alpha = FlatParams({"log_alpha": (1,)}, device=device)
        self._alpha.flat[0] = math.log(init_alpha)
        self.policy = ResidualPolicy(io, self.actor, self.norm, seed + 1)
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                "actor": self._actor_step, "critic": self._critic_step, "target": _Weights(self.target),
                "alpha": self._alpha, "policy": self.policy, "generator": generator,
            },
        )  # fmt: skip

    @property
    def alpha(self) -> Tensor:
        """() the temperature."""
        return self._alpha.flat[0].exp()

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """`utd` steps of critics, actor and temperature.

        Returns:
            The latest metrics: train/q, train/target, train/critic_loss, train/actor_loss, train/entropy, train/alpha.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        wanted = self._state.tick()
        found: dict[str, Tensor] = {}
        for _ in range(self._utd):
            rows = split(next(batches), 1, None)
            self.norm.observe(rows.state[0])
            found = self._fit(self.norm(rows.state[0]), self.norm(rows.next_state[0]), rows)
        return self._state.report(found if wanted else None)

    def _fit(self, state: Tensor, after: Tensor, rows: Any) -> dict[str, Tensor]:
        action, alpha = rows.action[0], self.alpha
        with torch.no_grad():
            next_action, next_logp = self._draw(self.actor(after)[0])
            ahead = self._reduced(self.target(torch.cat([after, next_action], 1)))
            target = rows.reward[0] + rows.discount[0] * (ahead - alpha * next_logp)
        q = self.critic(torch.cat([state, action], 1))[..., 0]
        loss = (q - target).square().mean(1).sum()
        self._critic_step(loss)
        own, logp = self._draw(self.actor(state)[0])
        actor_loss = alpha * logp - self._reduced(self.critic(torch.cat([state, own], 1)))
        self._actor_step.alone(actor_loss.mean())
        logp = logp.detach()
        self._alpha.grad[0] = -(logp.mean() + self._entropy)
        self._alpha.adam(self._lr)
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.critic.parameters()):
                old.lerp_(new, self._tau)
        return {
            "q": q.detach().mean(), "target": target.mean(), "critic_loss": loss.detach(), "alpha": alpha,
            "actor_loss": actor_loss.detach().mean(), "entropy": -logp.mean(),
        }  # fmt: skip

    def _draw(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn(len(raw), self.io.action_dim, generator=self._generator, device=raw.device)
        return squashed_sample(raw, noise)

    def _reduced(self, out: Tensor) -> Tensor:
        return out[..., 0].amin(0) if self._min else out[..., 0].mean(0)

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, moments, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        with torch.no_grad():
            self._state.load_state_dict(state)


class _Weights:
    """A module without an optimiser as a part of a learner."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, Any]:
        return module_state(self._module)

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        load_module(self._module, state)


class ResidualPolicy(ModulePolicy):
    """The squashed Gaussian of a `ResidualNet`; shares the learner's parameters."""

    def __init__(self, io: IOSpec, actor: ResidualNet, norm: RunningNorm, seed: int) -> None:
        """Share actor and moments; `seed` is of the exploration noise."""
        self.io, self._actor, self._norm = io, actor, norm
        super().__init__("actor", self._actor, torch.Generator(device=norm.shift.device).manual_seed(seed), norm)

    def reset(self, rows: Any = None) -> None:
        """Nothing to forget: the policy has no memory."""

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, S) -> (B, A) in [-1, 1], in the kind of the observation."""
        given = obs["state"]
        state = torch.as_tensor(given).to(self._norm.shift.device, torch.float32)
        raw = self._actor(self._norm(state))[0]
        mean = raw[:, : self.io.action_dim]
        if deterministic:
            action = mean.tanh()
        else:
            noise = torch.randn(mean.shape, generator=self._generator, device=mean.device)
            action = squashed_sample(raw, noise)[0]
        return Action(action.cpu().numpy() if isinstance(given, np.ndarray) else action)
