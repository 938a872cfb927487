"""CQL: soft actor-critic whose critics are pushed down on actions outside the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.imitation import log_density
from robot_rl.policies.nets.initial import orthogonal
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.policies.nets.net import Net, mean_rows
from robot_rl.policies.nets.rows import Rows
from robot_rl.policies.nets.soft_learner import SoftLogLearner, SoftLogOptions
from robot_rl.types import Metrics, Transitions
from robot_rl.types.options import Count, NotNegative, Number, Positive


class CqlOptions(SoftLogOptions):
    """Of CQL."""

    hidden: tuple[Count, ...] = (256, 256, 256)
    """Widths of the actor."""
    critic_hidden: tuple[Count, ...] | None = None
    """Widths of the critics; null means hidden. AntMaze: five layers."""
    alpha_cql: NotNegative = 10.0
    """Weight of the conservative term; 10 locomotion, 5 AntMaze, 1 Adroit."""
    samples: Count = 10
    """Actions of each of the three kinds per state."""
    temperature: Positive = 1.0
    """Of the logsumexp."""
    importance: bool = True
    """Subtract the log-density of each sampled action (CQL(H)); else also Q(s, a) is in the logsumexp."""
    lagrange_gap: Number | None = None
    """Wanted size of the conservative difference, reached by a dual variable (0.8 AntMaze, 5 Maze2d); null for a fixed
    weight."""
    clip_low: Number | None = None
    """Lower limit of the difference; -200 AntMaze."""
    clip_high: Number | None = None
    """Upper limit."""
    max_target_backup: bool = False
    """The target takes the best of the sampled next actions."""
    backup_entropy: bool = False
    """The target contains the entropy term."""
    bc_steps: Annotated[int, Field(ge=0)] = 0
    """First updates in which the actor copies the data."""
    actor_lr: NotNegative = 3e-5
    """Step size of actor and temperature; 1e-4 AntMaze and Adroit."""


C = TypeVar("C", bound=CqlOptions)


class Conservative(SoftLogLearner[C]):
    """What CQL shares with Cal-QL.

    Metrics: train/q, train/target, train/critic_loss, train/conservative (difference that is pushed down), train/alpha,
    train/entropy, train/actor_loss, train/dual (with lagrange_gap).
    """

    @property
    def soft(self) -> bool:
        """Where the target contains the entropy."""
        return self.o.backup_entropy

    def build(self) -> None:
        """Twin critics with targets, an actor, a temperature, and the dual variable of the gap."""
        o, s, a = self.o, self.size, self.actions
        self.actor = self.net("actor", s, 2 * a, lr=o.actor_lr, decay=o.actor_decay, draw=_narrow)
        self.critic = self.net("critic", s + a, members=2, hidden=o.critic_hidden, draw=orthogonal)
        self.target = self.target_copy("target", self.critic)
        self.dual = self.number("log_dual", 0.0, lr=o.lr)
        self.soften(self.actor, init_alpha=1.0, lr=o.actor_lr)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of everything on one batch; every loss is built from the networks as they were before it."""
        b = self.rows(next(batches))
        alpha, raw = self.alpha, self.actor(b.state)
        action, logp = self.sample(raw)
        with torch.no_grad():
            next_raw = self.actor(b.next_state)
            target = self.bootstrap(b, next_raw, alpha)
            outside = self.outside(raw, next_raw)
        if self.next_update <= self.o.bc_steps:
            value = log_density(raw, b.action, edge=1e-6)
        else:
            value = self.critic(b.state, action).amin(0)
        actor_loss = alpha * logp - value
        self.actor.step(mean_rows(actor_loss))
        self.temperature.step(self.temperature_loss(logp))
        found = self.step_critics(b, target, *outside)
        self.target.soft_update(self.critic, self.o.tau)
        return self.metrics(**found, target=target, alpha=alpha, entropy=-logp, actor_loss=actor_loss)

    def bootstrap(self, b: Rows, raw: Tensor, alpha: Tensor) -> Tensor:
        """(S, B) y = r + discount min_i Q'_i(s', a'), a' sampled, or the best of several samples."""
        action, logp = self.sample(raw, self.o.samples if self.o.max_target_backup else 1)
        q, best = self.of_each(self.target, b.next_state, action).amin(0).max(0)
        if self.o.backup_entropy:
            q = q - alpha * logp.gather(0, best[None])[0]
        return b.reward + b.discount * q

    def outside(self, raw: Tensor, next_raw: Tensor) -> tuple[Tensor, Tensor]:
        """Actions outside the data (3 k, S, B, A), uniform, the policy's at s', the policy's at s; log-densities."""
        k = self.o.samples
        here, there = self.sample(raw, k), self.sample(next_raw, k)
        free = torch.rand(here[0].shape, generator=self.generator, device=raw.device) * 2 - 1
        density = torch.full_like(here[1], -self.actions * math.log(2.0))
        return torch.cat([free, there[0], here[0]]), torch.cat([density, there[1], here[1]])

    def of_each(self, net: Net, state: Tensor, action: Tensor) -> Tensor:
        """(2, K, S, B) values of actions (K, S, B, A) at states (S, B, n)."""
        count, seeds, rows = action.shape[:3]
        wide = state[:, None].expand(seeds, count, rows, -1).flatten(1, 2)
        return net(wide, action.transpose(0, 1).flatten(1, 2)).unflatten(2, (count, rows)).transpose(1, 2)

    def step_critics(self, b: Rows, target: Tensor, action: Tensor, density: Tensor) -> dict[str, Tensor]:
        """(Q - y)^2 + alpha_cql (logsumexp over actions outside the data - Q(s, a))."""
        o = self.o
        every = self.of_each(self.critic, b.state, torch.cat([b.action[None], action]))
        q, values = every[:, 0], every[:, 1:]
        uniform, own = values.split((o.samples, 2 * o.samples), 1)
        values = torch.cat([uniform, self.floor(own, b)], dim=1)
        values = values - density if o.importance else torch.cat([values, q[:, None]], dim=1)
        gap = o.temperature * (values / o.temperature).logsumexp(1) - q
        if o.clip_low is not None or o.clip_high is not None:
            gap = gap.clamp(o.clip_low, o.clip_high)
        weight: Tensor | float = o.alpha_cql
        found: dict[str, Tensor] = {}
        if o.lagrange_gap is not None:
            dual = self.dual["log_dual"].exp().clamp(max=1e6)
            weight = o.alpha_cql * dual.detach()
            self.dual.step(-0.5 * o.alpha_cql * (dual * (gap.detach().mean(-1) - o.lagrange_gap)).sum())
            found["dual"] = self.dual["log_dual"].exp()
        error = (q - target).square()
        self.critic.step(mean_rows(error + weight * gap))
        return {"q": q, "critic_loss": error.sum(0), "conservative": gap, **found, **self.measure(own, b)}

    def floor(self, own: Tensor, b: Rows) -> Tensor:
        """Values (2, 2 k, S, B) of the policy's actions as they enter the logsumexp."""
        return own

    def measure(self, own: Tensor, b: Rows) -> dict[str, Tensor]:
        """Further metrics of the values of the policy's actions."""
        return {}


@torch.no_grad()
def _narrow(shape: MlpShape, params: FlatParams, generator: torch.Generator) -> None:
    """Orthogonal weights, and CORL's offset of the log-std, whose learned factor and offset live in the last layer."""
    orthogonal(shape, params, generator)
    params.view[f"bias{len(shape.hidden)}"][:, shape.outputs // 2 :] = -1.0


class Cql(Conservative[CqlOptions]):
    """Conservative Q-learning, CQL(H).

    Each critic's loss is (Q - y)^2 + alpha_cql (logsumexp over actions outside the data - Q(s, a)), the logsumexp over
    uniform actions and the policy's at s and s', all valued at s with importance weights.

    Source: Kumar et al., Conservative Q-Learning for Offline RL, equation 4 and appendix F; details of CORL cql.py.
    Where we differ: the learned offset and factor of the log-std are folded into the output layer.
    """

    method = "CQL"
