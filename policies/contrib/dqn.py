"""Double DQN: Q-learning where an action is one of n choices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from pydantic import StrictBool
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from robot_rl.policies.nets.learner import TdLearner, TdOptions, TdRows
from robot_rl.policies.nets.net import Net, mean_rows
from robot_rl.policies.nets.normalizer import Centre, RunningNorm
from robot_rl.state import Saved
from robot_rl.types import Action, Array, IOSpec, Metrics, Obs, PolicyParts, Transitions, action_of, choice_of
from robot_rl.types.options import Count, Rate, Share


class DqnOptions(TdOptions):
    """Of double DQN."""

    lr: Rate = 1e-3
    """Step size."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How it changes: kept, or falling to 0 at the end of the run along a line or half a cosine."""
    normalize_obs: StrictBool | Literal["auto"] = "auto"
    """Standardise "state" with running moments; auto: Gymnasium's tasks, whose units vary."""
    explore_start: Share = 1.0
    """Share of random choices at first."""
    explore_end: Share = 0.05
    """The same at last."""
    explore_steps: Count = 10_000
    """Actions over which the share falls from one to the other."""


class GreedyPolicy(Saved):
    """The choice with the largest Q; a falling share of random ones where it explores.

    Args:
        io: one "state", one action of n choices.
        critic: (B, S) -> (2, B, n), the learner's own; their mean decides.
        norm: of states, or None.
        options: of the method.
        seed: of the random choices.
    """

    saved = ("_acted",)

    parts = PolicyParts()

    def __init__(
        self, io: IOSpec, critic: Net, norm: RunningNorm | Centre | None, options: DqnOptions, *, seed: int
    ) -> None:
        self.io, self._critic, self._norm, self._o = io, critic, norm, options
        self._device = critic.params.flat.device
        self._generator = torch.Generator().manual_seed(seed)
        self._acted = 0

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget: the policy has no memory."""

    @property
    def exploration(self) -> float:
        """Share of random choices now."""
        o = self._o
        done = min(self._acted / o.explore_steps, 1.0)
        return o.explore_start + (o.explore_end - o.explore_start) * done

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose: "state" (B, S) -> (B, 1) in [-1, 1], in the kind of the observation."""
        state = torch.as_tensor(obs["state"]).to(self._device, torch.float32)
        q = self._critic(state if self._norm is None else self._norm(state)).mean(0)
        chosen = q.argmax(-1)
        if not deterministic:
            draw = torch.rand((2, len(chosen)), generator=self._generator).to(self._device)
            chosen = torch.where(draw[0] < self.exploration, (draw[1] * q.shape[-1]).long(), chosen)
            self._acted += len(chosen)
        value = action_of(chosen[:, None].float(), q.shape[-1])
        return Action(value.cpu().numpy() if isinstance(obs["state"], np.ndarray) else value)

    def saved_parts(self) -> dict[str, object]:
        """Weights, generator, how often it has acted, and moments, where there are some."""
        parts = {"critic": self._critic.params.flat, "generator": self._generator, "acted": self._acted}
        return {**parts, "normalizer": self._norm}


class Dqn(TdLearner[DqnOptions]):
    """Deep Q-learning whose own network chooses and whose target network judges.

    y = r + discount min_i Q'_i(s', a*) with a* = argmax_a mean_i Q_i(s', a) of two networks; the loss of every
    Q_i(s, a) - y is Huber's; targets follow by `tau`.

    Metrics: train/q, train/target, train/critic_loss.

    Source: van Hasselt, Guez and Silver, Deep Reinforcement Learning with Double Q-learning, equation 4; Mnih et al.,
    Human-level control through deep reinforcement learning; the minimum of two: Fujimoto et al.,
    Addressing Function Approximation Error in Actor-Critic Methods.
    """

    method = "DQN"
    chooses = True

    def build(self) -> None:
        """Two networks with a value for each choice, and their targets."""
        if len(self.io.action_choices) > 1:
            counts = ", ".join(map(str, self.io.action_choices))
            raise ValueError(
                f"DQN makes one choice at a time, and here there are several ({counts}); use policy=online/ppo"
            )
        if not self.io.action_choices:
            raise ValueError("DQN acts where an action is one of several choices, and here it is a number; use SAC")
        if self.eye is not None:
            raise ValueError("DQN reads 'state' alone; leave cameras out, or use policy=online/ppo on features")
        (self._count,) = self.io.action_choices
        self.critic = self.net("critic", self.features, self._count, members=2)
        self.critic_target = self.target_copy("critic_target", self.critic)
        self.schedule(self.o.lr_schedule)
        self.policy = GreedyPolicy(self.io, self.critic, self.norm, self.o, seed=self.seed + 1)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """`utd` steps, each on a batch of its own."""
        found: dict[str, Tensor] = {}
        for _ in range(self.o.utd):
            found = self.learn(self.rows(next(batches)))
        return self.metrics(**found)

    def learn(self, b: TdRows) -> dict[str, Tensor]:
        """One step of the critic and its target."""
        index = choice_of(b.action, self._count).long()
        with torch.no_grad():
            best = self.critic(b.next_state).mean(0).argmax(-1, keepdim=True)
            judged = self.critic_target(b.next_target).amin(0)
            target = b.reward + b.discount * judged.gather(-1, best)[:, 0]
        q = self.critic(b.state).gather(-1, index.expand(2, -1, -1))[..., 0]
        loss = smooth_l1_loss(q, target.expand_as(q), reduction="none")
        self.critic.step(mean_rows(loss))
        self.follow(self.critic_target, self.critic)
        return {"q": q, "target": target, "critic_loss": loss}
