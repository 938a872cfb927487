"""PPO with a person in the loop: interventions are somebody else's rows, and a target for imitation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robot_rl.advantage import Pipeline, Stage, make_batch
from robot_rl.advantage.losses import ppo_rows
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.imitation import (
    CLONE_EDGE,
    SWITCH_WEIGHT,
    check_cloning,
    human_rows,
    imitation_grad,
    log_density,
)
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.squashed_policy import SquashedGaussianPolicy
from robot_rl.types import IOSpec, Learner, Metrics, Transitions
from robot_rl.types.options import Count, Discount, NotNegative, Positive, Rate, Whole


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


class HilPpo(Learner):
    """Clipped policy updates on the policy's own steps, with imitation of the person beside them.

    Every `rollout_steps` own steps, at the end of an episode, the learner gets all steps since its last update, in
    order. Those that the person drove are foreign rows: no policy gradient, the trace of the advantage stops before
    them (the value of the state in which the person took over stands for what came of it), and the critic learns from
    them like from all others. What the person did is imitated beside it.

    Source: Schulman et al., Proximal Policy Optimization Algorithms; Luo et al., RLIF (the reward from takeovers);
    Rajeswaran et al., DAPG (fading imitation beside a policy gradient). Where we differ: the policy is a squashed
    Gaussian, so that a person's actions at the bounds have a density; the log-likelihood is weighted per row.
    """

    consumes = "episodes"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.97,
        gae_lambda: Discount = 0.95,
        rollout_steps: Count = 250,
        batch_size: Count = 32,
        epochs: Count = 10,
        clip: Positive = 0.2,
        entropy_coef: NotNegative = 0.0,
        max_grad_norm: NotNegative = 0.5,
        target_kl: Positive | None = None,
        hidden: tuple[Count, ...] = (128, 128),
        lr: Rate = 3e-4,
        w_task: NotNegative = 1.0,
        w_rlif: NotNegative = 0.0,
        foreign_trace: str = "cut",
        bc_steps: Whole = 1000,
        il_weight: NotNegative = 1.0,
        il_fade: Whole = 0,
        min_std: Positive = 0.2,
        edge: NotNegative = CLONE_EDGE,
        switch_weight: NotNegative = SWITCH_WEIGHT,
        normalize_obs: bool = True,
    ) -> None:
        """Build actor and critic.

        Args:
            io: observation "state".
            seed: of weights, noise and minibatches.
            device: torch device.
            gamma: discount per step.
            gae_lambda: weight of longer returns in the advantage.
            rollout_steps: own steps between updates; read by the loop.
            batch_size: rows of one gradient, and of the person's rows beside them.
            epochs: passes over a rollout.
            clip: the probability ratio is clipped to [1 - clip, 1 + clip].
            entropy_coef: weight of the entropy of the Gaussian before squashing.
            max_grad_norm: of actor and critic each.
            target_kl: the update stops when the mean divergence from the acting policy exceeds 1.5 times this.
            hidden: widths of both networks.
            lr: of Adam.
            w_task: weight of the task reward.
            w_rlif: weight of the reward from interventions: -1 for the policy's step before a takeover.
            foreign_trace: "cut" (see above) or "keep": the advantage looks through the person's steps.
            bc_steps: behaviour cloning before the first own step.
            il_weight: of the imitation term.
            il_fade: updates over which it falls to 0; 0 = never.
            min_std: floor of the standard deviation before squashing: cloning would take exploration away.
            edge: cloned actions are clipped to 1 - edge; the policy's own are taken as they are.
            switch_weight: of the person's rows that open or close a gripper; all others weigh at most 1.
            normalize_obs: standardise the state.

        Raises:
            ValueError: no "state", or a number out of range.
        """
        if "state" not in io.obs or len(io.obs) > 1:
            raise ValueError(f"HIL-PPO reads 'state' alone, got {sorted(io.obs)}; set cameras=[]")
        if min(rollout_steps, batch_size, epochs) < 1 or min(bc_steps, il_fade) < 0 or not clip > 0:
            raise ValueError(
                "rollout_steps, batch_size and epochs must be at least 1, bc_steps and il_fade at least 0, clip above 0"
            )
        check_cloning(min_std, edge, switch_weight)
        self.io, self.batch_size, self.rollout_steps = io, batch_size, rollout_steps
        self._epochs, self._clip, self._entropy, self._norm_limit = epochs, clip, entropy_coef, max_grad_norm
        self._kl, self._lr, self._bc_steps = target_kl, lr, bc_steps
        self._w_task, self._w_rlif, self._gamma = w_task, w_rlif, gamma
        self._il_weight, self._il_fade, self._min_std = il_weight, il_fade, min_std
        self._edge, self._switch_weight = edge, switch_weight
        gae = Stage("gae", options={"gamma": gamma, "gae_lambda": gae_lambda, "foreign_trace": foreign_trace})
        self._pipeline = Pipeline([gae], whiten=True)
        width = io.obs["state"][0][0]
        self._norm = RunningNorm(width, device=device) if normalize_obs else None
        weights = torch.Generator(device=device).manual_seed(seed)
        actor = MlpShape(1, width, tuple(hidden), 2 * io.action_dim, False, "actor.")
        critic = MlpShape(1, width, tuple(hidden), 1, False, "critic.")
        self._params, self._critic_params = (FlatParams(shape.shapes(), device=device) for shape in (actor, critic))
        actor.initialise(self._params, weights)
        critic.initialise(self._critic_params, weights)
        self._params.view[f"actor.weight{len(hidden)}"].mul_(0.01)  # the first policy is the same everywhere
        self._actor, self._critic = build_mlp(actor, self._params), build_mlp(critic, self._critic_params)
        self._shuffle = torch.Generator().manual_seed(seed + 2)
        self.policy = SquashedGaussianPolicy(
            io, actor, self._params, seed=seed + 1, normalizer=self._norm, log_std_min=math.log(min_std)
        )
        self.updates = 0

    @property
    def il_weight(self) -> float:
        """Weight of the imitation term in this update."""
        left = 1.0 if not self._il_fade else max(0.0, 1.0 - self.updates / self._il_fade)
        return self._il_weight * left

    def pretrain(self, batches: Iterator[Transitions], /) -> Metrics:
        """`bc_steps` of cloning on demonstrations; returns pretrain/nll of the last batch."""
        last = math.nan
        for _ in range(self._bc_steps):
            batch = next(batches)
            if self._norm is not None:
                self._norm.observe(batch.obs["state"])
            raw = self._actor.forward(self._state(batch))[0]
            rows = human_rows(batch, switch_weight=self._switch_weight)
            grad, loss = imitation_grad(raw, batch.action, rows, min_std=self._min_std, edge=self._edge)
            self._descend(self._actor, self._params, grad)
            last = float(loss)
        return {"pretrain/nll": last} if self._bc_steps else {}

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One rollout, `epochs` passes.

        Args:
            batches: steps since the last update in order, then steps to imitate; extras "source" tells them apart (0
                and 1), "boundary" marks the first kind's ends and gaps, "reward_task" and "reward_rlif" are as
                recorded.

        Returns:
            train/policy_loss, value_loss, il_loss, kl, clip_fraction, own_share, explained_variance.

        Raises:
            FloatingPointError: a loss is not finite.
        """
        batch = next(batches)
        rows = self._rows(batch)
        sums: dict[str, float] = {}
        steps, stop = 0, False
        own = torch.nonzero(rows.own)[:, 0]
        for _ in range(self._epochs):
            order = torch.randperm(len(rows.state), generator=self._shuffle)
            for index in order.split(self.batch_size):
                self._value_step(rows, index, sums)
            mixed = own[torch.randperm(len(own), generator=self._shuffle)]
            for index in mixed.split(self.batch_size) if len(own) else ():
                kl = self._policy_step(rows, index, sums)
                steps += 1
                stop = self._kl is not None and kl > 1.5 * self._kl
                if stop:
                    break
            if stop:
                break
        self.updates += 1
        if self._norm is not None:
            self._norm.observe(batch.obs["state"][batch.extras["source"] == 0])
        out = {f"train/{name}": value / max(steps, 1) for name, value in sums.items() if name != "value_loss"}
        spread = float(rows.target.var(unbiased=False))
        error = float((rows.target - self._critic.forward(rows.state)[0][:, 0]).var(unbiased=False))
        return {
            **out,
            "train/value_loss": sums.get("value_loss", 0.0),
            "train/own_share": float(rows.own.float().mean()),
            "train/gradient_steps": float(steps),
            "train/explained_variance": 1.0 - error / max(spread, 1e-12),
            "train/il_weight": self.il_weight,
        }

    @torch.no_grad()
    def _rows(self, batch: Transitions) -> _Rows:
        """Advantages and targets of the steps in order, under the policy that acted."""
        first = batch.extras["source"] == 0
        count = int(first.sum())
        human = None if count == len(first) else _part(batch, ~first)
        batch = _part(batch, first)
        state = self._state(batch)
        after = self._state(batch, after=True)
        ends = batch.extras["boundary"].clone()
        ends[-1] = True
        reward = self._w_task * batch.extras["reward_task"] + self._w_rlif * batch.extras["reward_rlif"]
        terminated = batch.discount == 0  # the rules of the log have the last word on what a true end is
        episode = torch.cat([ends.new_zeros(1, dtype=torch.int32), ends[:-1].int().cumsum(0).int()])
        table = make_batch(
            reward,
            terminated,
            ends & ~terminated,
            episode,
            own=~batch.intervened,
            value=self._critic.forward(state)[0][:, 0].clone(),
            next_value=self._critic.forward(after)[0][:, 0].clone(),
        )
        credit = self._pipeline(table)
        raw = self._actor.forward(state)[0]
        return _Rows(
            state=state,
            action=batch.action,
            logp=log_density(raw, batch.action, min_std=self._min_std),
            advantage=torch.as_tensor(credit.advantage),
            target=torch.as_tensor(credit.returns),
            own=torch.as_tensor(credit.mask),
            value_weight=torch.as_tensor(credit.value_weight),
            human=human,
        )

    def _value_step(self, rows: _Rows, index: Tensor, sums: dict[str, float]) -> None:
        error = self._critic.forward(rows.state[index])[0][:, 0] - rows.target[index]
        weight = rows.value_weight[index]
        grad = (2.0 / len(index)) * weight * error
        self._descend(self._critic, self._critic_params, grad[:, None])
        sums["value_loss"] = float((weight * error.square()).mean())

    def _policy_step(self, rows: _Rows, index: Tensor, sums: dict[str, float]) -> float:
        """One gradient; returns the divergence from the acting policy, on this minibatch, before it."""
        size, human = len(index), self._to_imitate(rows.human)
        seen = rows.state[index] if human is None else torch.cat([rows.state[index], self._state(human)])
        with torch.enable_grad():
            raw = self._actor.forward(seen)[0].detach().requires_grad_(True)
            log_ratio = log_density(raw[:size], rows.action[index], min_std=self._min_std) - rows.logp[index]
            ratio = log_ratio.exp()
            loss = ppo_rows(ratio, rows.advantage[index], clip=self._clip).mean()
            parts = {"policy_loss": loss}
            if self._entropy:
                wide = raw[:size, self.io.action_dim :].clamp(math.log(self._min_std), 2.0)
                loss = loss - self._entropy * wide.sum(-1).mean()
            if human is not None:
                weight = human_rows(human, switch_weight=self._switch_weight)
                known = log_density(raw[size:], human.action, min_std=self._min_std, edge=self._edge)
                parts["il_loss"] = -(weight * known).sum() / weight.sum().clamp_min(1e-6)
                loss = loss + self.il_weight * parts["il_loss"]
            (grad,) = torch.autograd.grad(loss, raw)
        if not bool(torch.isfinite(loss)):
            raise FloatingPointError("the policy loss is not finite; look for non-finite states in the log")
        self._descend(self._actor, self._params, grad)
        ratio, log_ratio = ratio.detach(), log_ratio.detach()
        kl = float((ratio - 1.0 - log_ratio).mean())
        parts |= {"kl": torch.tensor(kl), "clip_fraction": ((ratio - 1.0).abs() > self._clip).float().mean()}
        for name, value in parts.items():
            sums[name] = sums.get(name, 0.0) + value.detach().item()
        return kl

    def _to_imitate(self, human: Transitions | None) -> Transitions | None:
        if human is None or self.il_weight <= 0.0:
            return None
        return _part(human, torch.randint(len(human.reward), (self.batch_size,), generator=self._shuffle))

    @torch.no_grad()
    def _descend(self, net: Any, params: FlatParams, grad: Tensor) -> None:
        net.backward(grad[None])
        size = float(params.grad.norm())
        if size > self._norm_limit:
            params.grad.mul_(self._norm_limit / size)
        params.adam(self._lr)
        net.refresh()

    def _state(self, batch: Transitions, *, after: bool = False) -> Tensor:
        state = (batch.next_obs if after else batch.obs)["state"]
        return state if self._norm is None else self._norm(state)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimisers, moments and generators."""
        return {
            "actor": self._params.state_dict(),
            "critic": self._critic_params.state_dict(),
            "policy": self.policy.state_dict(),
            "shuffle": self._shuffle.get_state(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        self._params.load_state_dict(state["actor"])
        self._critic_params.load_state_dict(state["critic"])
        self.policy.load_state_dict(state["policy"])
        self._shuffle.set_state(state["shuffle"].cpu())
        self._actor.refresh()
        self._critic.refresh()
        self.updates = int(state["updates"])


def _part(batch: Transitions, rows: Tensor) -> Transitions:
    """Some rows of a batch."""
    names = ("action", "reward", "discount", "terminated", "truncated", "intervened", "mask")
    return Transitions(
        obs={key: value[rows] for key, value in batch.obs.items()},
        next_obs={key: value[rows] for key, value in batch.next_obs.items()},
        **{name: getattr(batch, name)[rows] for name in names},
        extras={name: value[rows] for name, value in batch.extras.items()},
    )
