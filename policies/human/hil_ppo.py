"""PPO with a person in the loop: interventions are somebody else's rows, and a target for imitation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from robot_rl.advantage import Pipeline, Stage, make_batch
from robot_rl.advantage.losses import ppo_rows
from robot_rl.policies.nets.cloning import CloningLearner, CloningOptions
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.imitation import log_density
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.rows import map_columns
from robot_rl.policies.nets.surrogate import SurrogateOptions
from robot_rl.types import IOSpec, Metrics, Needs, Transitions
from robot_rl.types.options import Count, NotNegative, Positive, Whole


@dataclass
class _Rows:
    """What an update learns from: N steps in order, M steps to imitate."""

    state: Tensor
    action: Tensor
    logp: Tensor
    advantage: Tensor
    target: Tensor
    own: Tensor
    value_weight: Tensor
    human: Transitions | None


class HilPpoOptions(CloningOptions, SurrogateOptions):
    """Of PPO with a person."""

    rollout_steps: Count = 250
    """Own steps between updates; read by the loop."""
    batch_size: Count = 32
    """Rows of one gradient, and of the person's rows beside them."""
    epochs: Count = 10
    """Passes over a rollout."""
    entropy_coef: NotNegative = 0.0
    """Weight of the entropy of the Gaussian before squashing."""
    max_grad_norm: Positive = 0.5
    """Largest norm of the gradient of actor and critic each."""
    target_kl: Positive | None = None
    """The update stops when the mean divergence from the acting policy exceeds 1.5 times this."""
    hidden: tuple[Count, ...] = (128, 128)
    """Widths of both networks."""
    w_task: NotNegative = 1.0
    """Weight of the task reward."""
    w_rlif: NotNegative = 0.0
    """Weight of the reward from interventions: -1 for the policy's step before a takeover."""
    foreign_trace: Literal["cut", "keep"] = "cut"
    """The advantage's trace stops before the person's steps, or looks through them."""
    il_weight: NotNegative = 1.0
    """Of the imitation term."""
    il_fade: Whole = 0
    """Updates over which it falls to 0; 0 for never."""
    min_std: Positive = 0.2
    """Floor of the standard deviation before squashing: cloning would take exploration away."""


class HilPpo(CloningLearner[HilPpoOptions]):
    """Clipped policy updates on the policy's own steps, with imitation of the person beside them.

    Every `rollout_steps` own steps, at the end of an episode, the learner gets all steps since its last update, in
    order. Those that the person drove are foreign rows: no policy gradient, the trace of the advantage stops before
    them (the value of the state in which the person took over stands for what came of it), and the critic learns from
    them like from all others. What the person did is imitated beside it.

    Source: Schulman et al., Proximal Policy Optimization Algorithms; Luo et al., RLIF (the reward from takeovers);
    Rajeswaran et al., DAPG (fading imitation beside a policy gradient). Where we differ: the policy is a squashed
    Gaussian, so that a person's actions at the bounds have a density; the log-likelihood is weighted per row.
    """

    method = "HIL-PPO"

    def __init__(
        self, options: HilPpoOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.97
    ) -> None:
        """Build actor and critic.

        Args:
            options: of the method.
            io: observation "state".
            seed: of weights, noise and minibatches.
            device: torch device.
            gamma: discount per step.

        Raises:
            ValueError: no "state", or pictures.
        """
        super().__init__(options, io, seed=seed, device=device)
        names = {"gamma": gamma, "gae_lambda": options.gae_lambda, "foreign_trace": options.foreign_trace}
        self._pipeline = Pipeline([Stage("gae", options=names)], whiten=True)

    @classmethod
    def needs(cls, options: HilPpoOptions, io: IOSpec) -> Needs:
        """All steps since the last update, in order, and rows to imitate."""
        return Needs(feeds="episodes", rows=options.batch_size, rollout_steps=options.rollout_steps)

    @property
    def log_std_min(self) -> float:
        """The policy acts with the floor of its loss."""
        return math.log(self.o.min_std)

    def build(self) -> None:
        """Actor and critic; the first policy is the same everywhere."""
        self.actor = self.net("actor", self.size, 2 * self.actions, draw=_small_outputs)
        self.critic = self.net("critic", self.size)
        self.actor.max_norm = self.critic.max_norm = self.o.max_grad_norm

    @property
    def il_weight(self) -> float:
        """Weight of the imitation term in this update."""
        fade = self.o.il_fade
        return self.o.il_weight * (max(0.0, 1.0 - self.state.updates / fade) if fade else 1.0)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One rollout, `epochs` passes.

        Args:
            batches: steps since the last update in order, then steps to imitate; extras "source" tells them apart (0
                and 1), "boundary" marks the first kind's ends and gaps, "reward_task" and "reward_rlif" are as
                recorded.

        Returns:
            The latest metrics: train/policy_loss, il_loss, kl, clip_fraction (means over the minibatches),
            train/value_loss of the last one, train/own_share, gradient_steps, explained_variance, il_weight.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        o, batch = self.o, next(batches)
        rows = self._rows(batch)
        own, value_loss, seen = torch.nonzero(rows.own)[:, 0], torch.zeros(()), list[dict[str, Tensor]]()
        for _ in range(o.epochs):
            for index in self._shuffle(len(rows.state)).split(o.batch_size):
                error = (self.critic(rows.state[index]) - rows.target[index]).square()
                value_loss = mean_rows(rows.value_weight[index] * error)
                self.critic.step(value_loss)
            for index in own[self._shuffle(len(own))].split(o.batch_size) if len(own) else ():
                seen.append(self._policy_step(rows, index))
                if o.target_kl is not None and float(seen[-1]["kl"]) > 1.5 * o.target_kl:
                    break
            else:
                continue
            break  # the policy has moved far enough
        weight = self.il_weight
        if self.norm is not None:
            self.norm.observe(batch.obs["state"][batch.extras["source"] == 0])
        with torch.no_grad():
            left = (rows.target - self.critic(rows.state)).var(unbiased=False)
        explained = 1.0 - left / rows.target.var(unbiased=False).clamp_min(1e-12)
        found = {name: torch.stack([step[name] for step in seen]) for name in (seen[0] if seen else ())}
        return self.metrics(
            **found,
            value_loss=value_loss,
            own_share=rows.own.float(),
            gradient_steps=torch.tensor(float(len(seen))),
            explained_variance=explained,
            il_weight=torch.tensor(weight),
        )

    def _shuffle(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, device=self.generator.device)

    @torch.no_grad()
    def _rows(self, batch: Transitions) -> _Rows:
        """Advantages and targets of the steps in order, under the policy that acted."""
        first = batch.extras["source"] == 0
        count = int(first.sum())
        human = None if count == len(first) else map_columns(batch, lambda x: x[~first])
        batch = map_columns(batch, lambda x: x[first])
        state, after = self.look(batch.obs), self.look(batch.next_obs)
        ends = batch.extras["boundary"].clone()
        ends[-1] = True
        reward = self.o.w_task * batch.extras["reward_task"] + self.o.w_rlif * batch.extras["reward_rlif"]
        terminated = batch.discount == 0  # the rules of the log have the last word on what a true end is
        episode = torch.cat([ends.new_zeros(1, dtype=torch.int32), ends[:-1].int().cumsum(0).int()])
        table = make_batch(
            reward,
            terminated,
            ends & ~terminated,
            episode,
            own=~batch.intervened,
            value=self.critic(state),
            next_value=self.critic(after),
        )
        credit = self._pipeline(table)
        return _Rows(
            state=state,
            action=batch.action,
            logp=log_density(self.actor(state), batch.action, min_std=self.o.min_std),
            advantage=torch.as_tensor(credit.advantage),
            target=torch.as_tensor(credit.returns),
            own=torch.as_tensor(credit.mask),
            value_weight=torch.as_tensor(credit.value_weight),
            human=human,
        )

    def _policy_step(self, rows: _Rows, index: Tensor) -> dict[str, Tensor]:
        """One step of the actor: the clipped surrogate on own rows, the entropy, imitation of the person's rows."""
        o, human = self.o, self._to_imitate(rows.human)
        own = rows.state[index]
        raw = self.actor(own if human is None else torch.cat([own, self.look(human.obs)]))
        raw, cloned = raw.split([len(own), len(raw) - len(own)])
        log_ratio = log_density(raw, rows.action[index], min_std=o.min_std) - rows.logp[index]
        ratio = log_ratio.exp()
        policy_loss = mean_rows(ppo_rows(ratio, rows.advantage[index], clip=o.clip))
        loss, found = policy_loss, {"policy_loss": policy_loss.detach()}
        if o.entropy_coef:
            wide = raw[:, self.actions :].clamp(math.log(o.min_std), 2.0)
            loss = loss - o.entropy_coef * mean_rows(wide.sum(-1))
        if human is not None:
            il_loss = self.cloning_loss(cloned, human)
            loss, found["il_loss"] = loss + self.il_weight * il_loss, il_loss.detach()
        self.actor.step(loss)
        # Schulman's k3 of the divergence from the acting policy, on this minibatch before its step
        ratio, log_ratio = ratio.detach(), log_ratio.detach()
        return found | {
            "kl": (ratio - 1.0 - log_ratio).mean(),
            "clip_fraction": ((ratio - 1.0).abs() > o.clip).float().mean(),
        }

    def _to_imitate(self, human: Transitions | None) -> Transitions | None:
        if human is None or self.il_weight <= 0.0:
            return None
        size, device = (self.o.batch_size,), human.reward.device
        drawn = torch.randint(len(human.reward), size, generator=self.generator, device=device)
        return map_columns(human, lambda x: x[drawn])


def _small_outputs(shape: MlpShape, params: FlatParams, generator: torch.Generator) -> None:
    shape.initialise(params, generator)
    params.view[f"{shape.prefix}weight{len(shape.hidden)}"].mul_(0.01)
