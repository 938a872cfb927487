"""What off-policy learners on a device have in common: batches in, one critic and now and then one actor step, no wait.

A method adds its target, its actor's loss and its way to explore (`policies/online/fast_sac.py`, `fast_td3.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from robot_rl import parallel
from robot_rl.policies.nets.device_critic import (
    AUTO_RANGE,
    DeviceCritic,
    DeviceCriticOptions,
    DeviceRewardScale,
    descend,
)
from robot_rl.policies.nets.device_mlp import Tower, freeze, leaves
from robot_rl.policies.nets.device_policy import DevicePolicy
from robot_rl.policies.nets.device_step import (
    DeviceMetrics,
    Repeated,
    half_products,
    maybe_compiled,
    resolve_accelerate,
    resolve_amp,
)
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.state import Saved
from robot_rl.types import Batches, IOSpec, Metrics, Needs, Obs, OffPolicyDeviceLearner, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative

CPU_ROWS = 256
_METRICS = ("critic_loss", "q", "target_edge_mass", "actor_loss", "alpha", "entropy")


class DeviceOptions(DeviceCriticOptions):
    """What every off-policy learner on a device may be told."""

    batch_size: Count | None = None
    """Rows per critic step, over all processes; null: the source's number on a GPU, 256 on a CPU, where that many rows
    would take half a minute a step."""
    updates: Count = 2
    """Critic steps per step of all environments."""
    actor_delay: Count = 2
    """The actor learns in every n-th critic step."""
    actor_hidden: tuple[Count, ...] = (512, 256, 128)
    """Widths of the actor's hidden layers."""
    actor_lr: NotNegative | None = None
    """Step size of the actor; null means lr."""
    tau: Mixing = 0.1
    """Polyak rate per critic step."""
    normalize_obs: bool = True
    """Standardise observations with running moments."""
    amp: Literal["auto", "bf16", "float32"] = "auto"
    """Type of the matrix products, all else is float32; auto: bf16 on CUDA."""
    accelerate: Literal["auto", "eager", "compile", "graph", "compile_graph"] = "auto"
    """Compiled and captured steps; auto: compile_graph on CUDA, eager on the CPU."""


D = TypeVar("D", bound=DeviceOptions)


class DeviceLearner(Saved, OffPolicyDeviceLearner[D, Transitions], ABC):
    """The frame of a method.

    Attributes:
        device: of all tensors.
        batch_size: rows per critic step of this process.
        updates: critic steps so far.
        critic: online and averaged critics.
    """

    saved = ("updates",)

    policy: DevicePolicy
    source_rows: ClassVar[int]
    """Rows per critic step in the source's code, which is for a GPU."""

    def __init__(self, options: D, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build what methods share.

        Args:
            options: of the method.
            io: vectors of floats in, actions out.
            seed: of weights, noise and sampling.
            device: torch device; with "cuda" steps are compiled and captured.

        Raises:
            ValueError: an observation that is no vector.
        """
        if options.batch_size is None:
            rows = CPU_ROWS if torch.device(device).type == "cpu" else self.source_rows
            options = options.model_copy(update={"batch_size": rows})
        super().__init__(options, io, seed=seed, device=device)
        o, self.seed, self.device = options, seed, torch.device(device)
        # Every process has the same share of one joint batch.
        self.batch_size = parallel.shard(self.need.rows, "policy.batch_size")
        self._actor_lr = o.lr if o.actor_lr is None else o.actor_lr
        self.features = vector_size(io)
        self.generator = torch.Generator(self.device).manual_seed(seed)  # weights: the same on every process
        self._noise = torch.Generator(self.device).manual_seed(seed + 1 + 7919 * parallel.rank())
        self.norm = RunningNorm(self.features, device=self.device) if o.normalize_obs else None
        scaled = isinstance(o.value_range, str)
        self.reward_scale = DeviceRewardScale(AUTO_RANGE, device=self.device) if scaled else None
        self.critic = DeviceCritic(o, self.features, io.action_dim, generator=self.generator)
        self.amp = resolve_amp(o.amp, self.device)
        self._compile, self._graph = resolve_accelerate(o.accelerate, self.device)
        self.metrics = DeviceMetrics(_METRICS, self.device)
        self.updates = 0
        self._parts: dict[str, object] = {
            "norm": self.norm,
            "reward_scale": self.reward_scale,
            "critic": self.critic,
        }
        self._source: Iterator[Transitions] | None = None
        self._latest: Metrics = {}
        self._explorer: Repeated | None = None

    @classmethod
    def needs(cls, options: D, io: IOSpec) -> Needs:
        """Replayed rows on the device, of all processes together."""
        return replace(super().needs(options, io), rows=options.batch_size or cls.source_rows)

    # What a method brings -------------------------------------------------------------------------------------------

    @abstractmethod
    def critic_target(self, feature: Tensor, reward: Tensor, discount: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Target distribution (B, M) at s' = `feature`, and what `after_critic` wants to know."""

    def after_critic(self, known: Tensor) -> None:
        """Called after every critic step with the second result of `critic_target`."""

    @abstractmethod
    def actor_loss(self, feature: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """() loss whose gradient moves the actor, and () the entropy to report."""

    @abstractmethod
    def explore_action(self, feature: Tensor, ended: Tensor) -> Tensor:
        """(N, A) actions to learn from, of normalised features (N, S); `ended` (N,) bool: an episode begins here."""

    @abstractmethod
    def rule(self, raw: Tensor, noise: Tensor | None) -> Tensor:
        """(B, A) actions in [-1, 1] from what the actor puts out and noise (B, A); None for none."""

    # The frame ------------------------------------------------------------------------------------------------------

    def add_actor(self, outputs: int, init_scale: float) -> None:
        """An actor of so many outputs, with first output weights of deviation `init_scale`; it acts by `rule`."""
        o = self.o
        shape = MlpShape(1, self.features, o.actor_hidden, outputs, o.layer_norm, "actor.")
        self._tower, self._actor = Tower(shape, o.activation), FlatParams(shape.shapes(), device=self.device)
        shape.initialise(self._actor, self.generator)
        self._tower.small_outputs(self._actor, self.generator, init_scale)
        self._leaf, self._still = leaves(self._actor), freeze(self._actor)
        seed = self.seed + 2 + 7919 * parallel.rank()  # every process explores by noise of its own
        self.policy = DevicePolicy(self.io, self._tower, self._actor, self.rule, seed=seed, normalizer=self.norm)
        self._parts |= {"actor": self._actor, "policy": self.policy}
        self._critic_part = maybe_compiled(self._critic_loss, self._compile)
        self._actor_part = maybe_compiled(self._actor_loss, self._compile)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """`updates` critic steps, each on its own batch; the actor learns in every `actor_delay`-th of them.

        Nothing here waits for the device: the result is what `read_metrics` read last.

        Args:
            batches: endless batches of `batch_size` rows; drawing them is part of the captured step.
        """
        if batches is not self._source:
            generators = (self._noise, *(batches.generators if isinstance(batches, Batches) else ()))
            self._source = batches
            self._critic_only = Repeated(lambda: self._draw(batches, False), graph=self._graph, generators=generators)
            self._with_actor = Repeated(lambda: self._draw(batches, True), graph=self._graph, generators=generators)
        for _ in range(self.o.updates):
            self.updates += 1
            (self._critic_only if self.updates % self.o.actor_delay else self._with_actor)()
        return dict(self._latest)

    def _draw(self, batches: Iterator[Transitions], with_actor: bool) -> None:
        batch = next(batches)
        shape = (2, len(batch.reward), self.io.action_dim)
        self.learn(batch, torch.randn(shape, generator=self._noise, device=self.device), with_actor)

    def learn(self, batch: Transitions, noise: Tensor, with_actor: bool) -> None:
        """One critic step, and one actor step if asked.

        Args:
            batch: (B, ...) rows on the device; rows with `mask` False weigh nothing.
            noise: (2, B, A) standard normal: at s' and at s.
            with_actor: whether the actor learns too.
        """
        feature, next_feature = self.policy.feature(batch.obs), self.policy.feature(batch.next_obs)
        weight, reward = batch.mask.float(), batch.reward
        if self.reward_scale is not None:
            self.reward_scale.observe(reward, batch.discount, weight)
            reward = reward / self.reward_scale.scale
        loss, q, edge, known = self._critic_part(
            feature, batch.action, next_feature, reward, batch.discount, weight, noise[0]
        )
        loss.backward()
        descend(self.critic.params, self.o.lr, self.o)
        self.after_critic(known)
        self.metrics.add(critic_loss=loss, q=q, target_edge_mass=edge)
        if with_actor:
            loss, entropy = self._actor_part(feature, noise[1])
            loss.backward()
            descend(self._actor, self._actor_lr, self.o)
            self.metrics.add(actor_loss=loss, entropy=entropy)
        self.critic.target.blend(self.critic.params, self.o.tau)

    def _critic_loss(
        self,
        feature: Tensor,
        action: Tensor,
        next_feature: Tensor,
        reward: Tensor,
        discount: Tensor,
        weight: Tensor,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with half_products(self.device, self.amp):
            with torch.no_grad():
                target, known = self.critic_target(next_feature, reward, discount, noise)
            loss, q = self.critic.loss(feature, action, target, weight)
            return loss, q, self.critic.edge_mass(target), known

    def _actor_loss(self, feature: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        with half_products(self.device, self.amp):
            return self.actor_loss(feature, noise)

    @torch.no_grad()
    def explore(self, obs: Obs, ended: Tensor) -> Tensor:
        """Actions to learn from; the observations are counted into the moments.

        Args:
            obs: (N, ...) tensors on the device.
            ended: (N,) bool: rows in which an episode has just begun.

        Returns:
            (N, A) in [-1, 1].
        """
        feature = self.policy.join(obs)
        if self._explorer is None or len(self._seen) != len(feature):
            self._seen, self._begun = torch.empty_like(feature), torch.empty_like(ended)
            self._answer = torch.empty(len(feature), self.io.action_dim, device=self.device)
            generators = (self._noise, self.policy.generator)
            self._explorer = Repeated(self._explore, graph=self._graph, generators=generators)
        self._seen.copy_(feature)
        self._begun.copy_(ended)
        self._explorer()
        return self._answer.clone()

    def _explore(self) -> None:
        if self.norm is not None:
            self.norm.observe(parallel.rows(self._seen))
        feature = self._seen if self.norm is None else self.norm(self._seen)
        self._answer.copy_(self.explore_action(feature, self._begun).clamp(-1.0, 1.0))

    def read_metrics(self) -> Metrics:
        """Means since the last reading; the one place that waits for the device.

        Raises:
            FloatingPointError: a loss is not finite.
        """
        self._latest = self.metrics.read(self.method, self.updates)
        if self.reward_scale is not None and self.updates:
            self._latest["train/reward_scale"] = float(self.reward_scale.scale)
        return dict(self._latest)

    def saved_parts(self) -> dict[str, object]:
        """Weights, averages, moments, optimisers, the generator, the counter."""
        return {**self._parts, "noise": self._noise, "updates": self.updates}


def vector_size(io: IOSpec) -> int:
    """Width of all observations side by side.

    Raises:
        ValueError: there is none, or one is no vector of floats.
    """
    bad = {key: item for key, item in io.obs.items() if len(item[0]) != 1 or not item[1].startswith("float")}
    if bad or not io.obs:
        raise ValueError(
            f"learners on a device read vectors of floats, got {bad or 'no observation'}; build the environment "
            "without cameras, or train with policy=online/sac, which has an image encoder"
        )
    return sum(shape[0] for shape, _ in io.obs.values())
