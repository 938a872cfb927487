"""Soft actor-critic with ensembles, categorical values and images; RLPD is a configuration of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from robot_rl.policies.nets.distributions import squashed_sample
from robot_rl.policies.nets.learner import TdLearner, TdOptions, TdRows
from robot_rl.policies.nets.net import mean_rows, step
from robot_rl.policies.nets.value_heads import RewardScale, build_head
from robot_rl.types import Metrics, Transitions
from robot_rl.types.options import Count, NotNegative, Number, Positive, Support

AUTO_RANGE = 5.0
"""Categorical values live in [-5, 5] when the support is automatic."""


class SoftOptions(TdOptions):
    """Of soft actor-critics of replayed rows."""

    critics: Count = 2
    """Ensemble size E."""
    subset: Count | None = None
    """How many random target critics the minimum runs over; null means all."""
    layer_norm: bool = False
    """LayerNorm in the critics."""
    actor_layer_norm: bool = False
    """LayerNorm in the actor."""
    actor_delay: Count = 1
    """The actor learns in every n-th update."""
    actor_reduce: Literal["min", "mean"] = "min"
    """Over the critics in the actor's loss."""
    actor_lr: NotNegative | None = None
    """Step size of the actor; null means lr."""
    alpha_lr: NotNegative | None = None
    """Step size of the temperature; null means lr, 0 keeps it fixed."""
    init_alpha: Positive = 1.0
    """Temperature at the start."""
    target_entropy: Number | Literal["auto", "half"] = "auto"
    """A number, auto (-A) or half (-A / 2)."""
    backup_entropy: bool = True
    """Whether the target contains the entropy term."""
    value_head: Literal["mse", "twohot", "hlgauss", "c51", "quantile"] = "mse"
    """How a critic says a value."""
    value_range: Support | Literal["auto"] = "auto"
    """Support of the categorical heads in units of return; auto: rewards are divided by a running scale so that values
    fit [-5, 5], and temperature counts in scaled reward."""
    bins: Annotated[int, Field(ge=2)] = 101
    """Outputs of the categorical heads."""
    sigma_ratio: Positive = 0.75
    """HL-Gauss blur in bin widths."""

    @field_validator("subset")
    @classmethod
    def check_subset(cls, subset: int | None, info: ValidationInfo) -> int | None:
        """Refuse a subset that is larger than the whole."""
        critics = info.data.get("critics", subset)
        if subset is not None and subset > critics:
            raise ValueError(f"at most as many as there are critics ({critics})")
        return subset


class SacOptions(SoftOptions):
    """Of soft actor-critic in a loop that knows the run's end."""

    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How all step sizes change: kept, or falling to 0 at the end of the run along a line or half a cosine."""


S = TypeVar("S", bound=SoftOptions)


class SoftActorCritic(TdLearner[S]):
    """What SAC shares with the methods that add a loss to it.

    Metrics: train/critic_loss, train/q, train/target, train/alpha, train/entropy, train/actor_loss and, for categorical
    heads, train/head_clamped, train/head_edge_mass and train/reward_scale.
    """

    method = "SAC"
    privileged = True

    def build(self) -> None:
        """An ensemble of critics with targets, an actor, a temperature."""
        o, f, a = self.o, self.features, self.actions
        auto = isinstance(o.value_range, str)
        low, high = (-AUTO_RANGE, AUTO_RANGE) if isinstance(o.value_range, str) else o.value_range
        device = self.generator.device
        self.head = build_head(o.value_head, low=low, high=high, bins=o.bins, sigma_ratio=o.sigma_ratio, device=device)
        self.reward_scale = RewardScale(AUTO_RANGE, device=device) if auto and math.isfinite(self.head.low) else None
        if self.reward_scale is not None:
            self.state.include({"reward_scale": self.reward_scale})
        self.critic = self.net("critic", self.judged + a, self.head.outputs, members=o.critics, layer_norm=o.layer_norm)
        self.actor = self.net("actor", f, 2 * a, layer_norm=o.actor_layer_norm, lr=o.actor_lr)
        self.target = self.target_copy("target", self.critic)
        alpha_lr = o.lr if o.alpha_lr is None else o.alpha_lr
        self.temperature = self.number("log_alpha", math.log(o.init_alpha), lr=alpha_lr)
        named = {"auto": -float(a), "half": -a / 2}
        self.target_entropy = named[o.target_entropy] if isinstance(o.target_entropy, str) else o.target_entropy
        self.policy = self.gaussian_policy(self.actor.params, self.actor)

    @property
    def alpha(self) -> Tensor:
        """(1,) the temperature, a constant for losses."""
        return self.temperature["log_alpha"].detach().exp()

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """`utd` critic steps, each on a batch of its own, then one step of actor and temperature on the last."""
        for _ in range(self.o.utd - 1):
            self.step_critics(self.rows(next(batches)))
        b = self.rows(next(batches))
        found = self.step_critics(b)
        if self.next_update % self.o.actor_delay == 0:
            found |= self.step_actor(b)
        self.follow_encoders()
        return self.metrics(**found, alpha=self.alpha)

    def follow_encoders(self) -> None:
        """What acts takes over the encoder's weights (images only)."""
        for encoder in self.encoders:
            self.policy.follow_encoder(encoder.params)

    def step_critics(self, b: TdRows) -> dict[str, Tensor]:
        """J_Q: every critic regresses on the target; then the targets follow."""
        with torch.no_grad():
            target = self.bootstrap(b)
        out = self.critic(b.judged, b.action)
        loss = self.head.loss(out, target)
        step(loss, self.critic, *self.encoders)
        self.follow(self.target, self.critic)
        if not self.due:
            return {}
        out = out.detach()
        found = {"critic_loss": loss, "q": self.head.value(out), "target": self.head.scalar(target)}
        if self.reward_scale is not None:
            found["reward_scale"] = torch.tensor(self.reward_scale.scale)
        return found | self.head.diagnostics(out, target)

    def bootstrap(self, b: TdRows) -> Tensor:
        """y = r + discount (min_i Q'_i(s', a') - alpha log pi(a'|s')), a' ~ pi(s'), i from a random subset of targets.

        Returns:
            (B,), or what the head learns from.
        """
        action, logp = self.sample(self.actor(b.next_state))
        members: list[int] | None = None
        if self.o.subset is not None and self.o.subset < self.o.critics:
            order = torch.randperm(self.o.critics, generator=self.generator, device=action.device)
            members = order[: self.o.subset].tolist()
        out = self.target(b.next_target, action, member=members)
        cost = self.entropy_cost(b, action, logp) if self.o.backup_entropy else None
        reward = b.reward
        if self.reward_scale is not None:
            self.reward_scale.observe(reward, b.discount)
            reward = reward / self.reward_scale.scale
        return self.head.backup(out, reward, b.discount, cost)

    def entropy_cost(self, b: TdRows, action: Tensor, logp: Tensor) -> Tensor:
        """(B,) what the backup takes off the value of s'."""
        return self.alpha * logp

    def step_actor(self, b: TdRows) -> dict[str, Tensor]:
        """J_pi and J(alpha): the actor climbs soft values, the temperature keeps the entropy near its target."""
        state = b.state.detach()  # the encoder learns by the critics' loss alone
        raw = self.actor(state)
        action, logp = self.sample(raw)
        q = self.head.value(self.critic(b.judged.detach(), action))
        q = q.amin(0) if self.o.actor_reduce == "min" else q.mean(0)
        loss = self.alpha * logp - q
        full = self.actor_loss(b, raw, action, logp, loss)
        if self.temperature.lr:
            temperature_loss = -self.temperature["log_alpha"] * (logp.detach().mean() + self.target_entropy)
            step(mean_rows(full) + temperature_loss.sum(), self.actor, self.temperature)
        else:
            self.actor.step(mean_rows(full))
        return {"actor_loss": loss, "entropy": -logp}

    def actor_loss(self, b: TdRows, raw: Tensor, action: Tensor, logp: Tensor, loss: Tensor) -> Tensor:
        """(B,) what the actor minimises, given SAC's own loss of every row; methods that extend this one add terms.

        Args:
            b: the batch.
            raw: (B, 2A) what the actor puts out.
            action: (B, A) its sample.
            logp: (B,) log-density of it.
            loss: (B,) alpha log pi(a|s) - Q(s, a).
        """
        return loss

    def sample(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """An action (B, A) of the policy that an actor puts out, and its log-density (B,)."""
        return squashed_sample(raw, self.noise((len(raw), self.actions)))


class Sac(SoftActorCritic[SacOptions]):
    """Soft actor-critic.

    `update` draws `utd` batches of `batch_size` rows, one per critic step, and updates actor and temperature once, on
    the last of them. `discount` comes with the data: gamma^k (1 - terminated), so n-step returns and truncation are the
    sampler's matter. All randomness comes from one generator seeded with `seed`.

    `lr_schedule` scales the step sizes of critics, actor, temperature and image encoder alike.

    `matmul: bf16` is about 1.3 times faster but not cleared of costing return (docs/sac.md), so not the default.

    Source: Haarnoja et al., Soft Actor-Critic Algorithms and Applications (automatic temperature); Chen et al., REDQ
    (random subset); Ball et al., Efficient Online RL with Offline Data (LayerNorm critics, update ratio, mean over
    critics in the actor loss). Where we differ: the actor step reads image features computed before the critic step.
    """

    _centres = True

    def build(self) -> None:
        """Networks of soft actor-critic, whose step sizes fall where that was asked for."""
        super().build()
        self.schedule(self.o.lr_schedule)
