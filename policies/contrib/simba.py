"""SimBa: soft actor-critic with residual networks and standardised observations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from robot_rl.policies.contrib.simba_net import ResidualNet
from robot_rl.policies.nets.distributions import squashed_sample
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner import RowLearner, RowOptions
from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_step import ModuleStep, SlowCopy
from robot_rl.policies.nets.net import Leaves
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.rows import Rows, split, state_size
from robot_rl.types import Action, IOSpec, Metrics, Obs, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Number, Positive, Rate


class SimbaOptions(RowOptions):
    """Of SimBa."""

    actor_width: Count = 128
    """Residual stream of the actor."""
    actor_blocks: Count = 1
    """Its blocks."""
    critic_width: Count = 512
    """Residual stream of each critic."""
    critic_blocks: Count = 2
    """Their blocks."""
    critics: Count = 2
    """E."""
    reduce: Literal["min", "mean"] = "min"
    """Over critics: min for tasks that end early."""
    utd: Count = 2
    """Steps of everything per update, each on a batch of its own."""
    lr: Rate = 1e-4
    """Step size of everything (AdamW)."""
    weight_decay: NotNegative = 1e-2
    """Of actor and critics."""
    tau: Mixing = 0.005
    """Polyak rate of the target critics."""
    init_alpha: Positive = 0.01
    """Temperature at the start."""
    target_entropy: Number | Literal["half", "auto"] = "half"
    """A number, half (-A / 2) or auto (-A)."""


class Simba(RowLearner[SimbaOptions]):
    """Soft actor-critic whose actor and critics are `ResidualNet`s on running-standardised states, with weight decay.

    Target: y = r + discount (min Q'(s', a') - alpha log pi(a'|s')). Larger critics then help where plain perceptrons
    get worse with size.

    Source: Lee et al., SimBa: Simplicity Bias for Scaling Up Parameters in Deep Reinforcement Learning; structure and
    numbers are **recalled**, not checked against its code. Where we differ: moments come from replayed batches.
    """

    method = "SimBa"

    def __init__(self, options: SimbaOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build networks for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of initial weights and noise.
            device: torch device.

        Raises:
            ValueError: images, or no "state".
        """
        super().__init__(options, io, seed=seed, device=device)
        o, size, actions = options, state_size(io, self.method), io.action_dim
        named = {"half": -actions / 2, "auto": -float(actions)}
        self._entropy = named[o.target_entropy] if isinstance(o.target_entropy, str) else o.target_entropy
        self.norm = RunningNorm(size, device=device)
        self.actor = ResidualNet(1, size, o.actor_width, o.actor_blocks, 2 * actions, self.generator)
        self.critic = ResidualNet(o.critics, size + actions, o.critic_width, o.critic_blocks, 1, self.generator)
        self.target = SlowCopy(self.critic)
        self.actor_step = ModuleStep(self.actor, lr=o.lr, weight_decay=o.weight_decay)
        self.critic_step = ModuleStep(self.critic, lr=o.lr, weight_decay=o.weight_decay)
        params = FlatParams({"log_alpha": (1,)}, device=device)
        params.flat[0] = math.log(o.init_alpha)
        self.temperature = Leaves("log_alpha", params, lr=o.lr, free=["log_alpha"])
        self.policy = ResidualPolicy(io, self.actor, seed + 1, self.norm)
        self.state.include(
            {
                "actor": self.actor_step, "critic": self.critic_step, "target": self.target,
                "log_alpha": self.temperature, "policy": self.policy,
            }
        )  # fmt: skip

    @property
    def alpha(self) -> Tensor:
        """() the temperature, a constant for losses."""
        return self.temperature["log_alpha"].detach().exp()[0]

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """`utd` steps of critics, actor and temperature.

        Returns:
            The latest metrics: train/q, train/target, train/critic_loss, train/actor_loss, train/entropy, train/alpha.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        found: dict[str, Tensor] = {}
        for _ in range(self.o.utd):
            rows = split(next(batches), 1, None)
            self.norm.observe(rows.state[0])
            found = self._fit(self.norm(rows.state[0]), self.norm(rows.next_state[0]), rows)
        return self.metrics(**found)

    def _fit(self, state: Tensor, next_state: Tensor, rows: Rows) -> dict[str, Tensor]:
        action, alpha = rows.action[0], self.alpha
        with torch.no_grad():
            next_action, next_logp = self._sample(next_state)
            next_q = self._reduce(self.target(torch.cat([next_state, next_action], 1)))
            target = rows.reward[0] + rows.discount[0] * (next_q - alpha * next_logp)
        q = self.critic(torch.cat([state, action], 1))[..., 0]
        critic_loss = (q - target).square().mean(1).sum()
        self.critic_step(critic_loss)
        own, logp = self._sample(state)
        actor_loss = (alpha * logp - self._reduce(self.critic(torch.cat([state, own], 1)))).mean()
        self.actor_step.alone(actor_loss)
        self.temperature.step(-(self.temperature["log_alpha"] * (logp.detach().mean() + self._entropy)).sum())
        self.target.soft_update(self.o.tau)
        return {
            "q": q, "target": target, "critic_loss": critic_loss, "alpha": alpha,
            "actor_loss": actor_loss, "entropy": -logp,
        }  # fmt: skip

    def _sample(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return squashed_sample(self.actor(state)[0], self.noise((len(state), self.actions)))

    def _reduce(self, out: Tensor) -> Tensor:
        return out[..., 0].amin(0) if self.o.reduce == "min" else out[..., 0].mean(0)


class ResidualPolicy(ModulePolicy[ResidualNet]):
    """The squashed Gaussian of a `ResidualNet`; shares the learner's parameters."""

    weights = "actor"

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, S) -> (B, A) in [-1, 1], in the kind of the observation."""
        raw = self._net(self.see(obs))[0]
        mean = raw[:, : self.io.action_dim]
        if deterministic:
            action = mean.tanh()
        else:
            noise = torch.randn(mean.shape, generator=self._generator, device=mean.device)
            action = squashed_sample(raw, noise)[0]
        return self.answer(obs, action)
