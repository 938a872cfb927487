"""What off-policy learners on a device have in common: batches in, one critic and now and then one actor step, no wait.

A method adds its target, its actor's loss and its way to explore (`policies/online/fast_sac.py`, `fast_td3.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl import parallel
from robot_rl.policies.nets.device_critic import DeviceCritic, DeviceRewardScale, descend
from robot_rl.policies.nets.device_mlp import Tower
from robot_rl.policies.nets.device_policy import DevicePolicy, restore
from robot_rl.policies.nets.device_step import (
    DeviceMetrics,
    Repeated,
    maybe_compiled,
    resolve_accelerate,
    resolve_amp,
)
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.types import IOSpec, Metrics, Obs, OffPolicyDeviceLearner, Transitions

AUTO_RANGE = 5.0  # values live in [-5, 5] when the support is automatic
_METRICS = ("critic_loss", "q", "target_edge_mass", "actor_loss", "alpha", "entropy")


class DeviceLearner(OffPolicyDeviceLearner, ABC):
    """The frame of a method; see the methods for their options.

    Attributes:
        io: what the policy sees and does.
        device: of all tensors.
        batch_size: rows per critic step.
        updates: critic steps so far.
        low: lower end of the support.
        high: upper end.
    """

    consumes = "device_transitions"
    policy: DevicePolicy

    def __init__(
        self,
        name: str,
        io: IOSpec,
        *,
        seed: int,
        device: str,
        batch_size: int,
        updates: int,
        actor_delay: int,
        tau: float,
        critic_lr: float,
        beta2: float,
        weight_decay: float,
        max_grad_norm: float,
        value_range: tuple[float, float] | str,
        normalize_obs: bool,
        amp: str,
        accelerate: str,
    ) -> None:
        if min(batch_size, updates, actor_delay) < 1:
            raise ValueError(
                f"batch_size, updates and actor_delay are {batch_size}, {updates}, {actor_delay}; expected >= 1"
            )
        if not 0.0 < tau <= 1.0:
            raise ValueError(f"tau is {tau}, expected a number in (0, 1]")
        if isinstance(value_range, str) and value_range != "auto":
            raise ValueError(f"value_range is '{value_range}', expected 'auto' or two numbers")
        self.io, self.device, self.name = io, torch.device(device), name
        # Every process has the same share of one joint batch.
        self.batch_size, self.updates_per_step = parallel.shard(batch_size), updates
        self._delay, self._tau = actor_delay, tau
        self._step = {"beta2": beta2, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
        self._critic_lr = critic_lr
        self.features = vector_size(io)
        self._keys = sorted(io.obs)
        self.generator = torch.Generator(self.device).manual_seed(seed)  # weights: the same on every process
        self._noise = torch.Generator(self.device).manual_seed(seed + 1 + 7919 * parallel.rank())
        auto = isinstance(value_range, str)
        self.low, self.high = (-AUTO_RANGE, AUTO_RANGE) if auto else (float(value_range[0]), float(value_range[1]))
        self.norm = RunningNorm(self.features, device=self.device) if normalize_obs else None
        self.reward_scale = DeviceRewardScale(AUTO_RANGE, device=self.device) if auto else None
        self.amp = resolve_amp(amp, self.device)
        self._compile, self._graph = resolve_accelerate(accelerate, self.device)
        self.metrics = DeviceMetrics(_METRICS, self.device)
        self.updates = 0
        self._parts: dict[str, Any] = {"norm": self.norm, "reward_scale": self.reward_scale}
        self._source: Iterator[Transitions] | None = None
        self._latest: Metrics = {}
        self._explorer: Repeated | None = None

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

    # The frame ------------------------------------------------------------------------------------------------------

    def attach(self, critic: DeviceCritic, tower: Tower, actor: FlatParams, policy: DevicePolicy, lr: float) -> None:
        """Take the method's networks."""
        self.critic, self._tower, self._actor, self.policy, self._actor_lr = critic, tower, actor, policy, lr
        self._parts |= {"critic": critic, "actor": actor, "policy": policy}
        self._critic_part = maybe_compiled(self._critic_loss, self._compile)
        self._actor_part = maybe_compiled(self._actor_loss, self._compile)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """`updates` critic steps, each on its own batch; the actor learns in every `actor_delay`-th of them.

        Nothing here waits for the device: the result is what `read_metrics` read last.

        Args:
            batches: endless batches of `batch_size` rows; drawing them is part of the captured step.
        """
        if batches is not self._source:
            generators = (self._noise, *getattr(batches, "generators", ()))
            self._source = batches
            self._critic_only = Repeated(lambda: self._draw(batches, False), graph=self._graph, generators=generators)
            self._with_actor = Repeated(lambda: self._draw(batches, True), graph=self._graph, generators=generators)
        for _ in range(self.updates_per_step):
            self.updates += 1
            (self._critic_only if self.updates % self._delay else self._with_actor)()
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
        feature, next_feature = self.feature(batch.obs), self.feature(batch.next_obs)
        weight, reward = batch.mask.float(), batch.reward
        if self.reward_scale is not None:
            self.reward_scale.observe(reward, batch.discount, weight)
            reward = reward / self.reward_scale.scale
        loss, q, edge, known = self._critic_part(
            feature, batch.action, next_feature, reward, batch.discount, weight, noise[0]
        )
        loss.backward()
        descend(self.critic.params, lr=self._critic_lr, **self._step)
        self.after_critic(known)
        self.metrics.add(critic_loss=loss, q=q, target_edge_mass=edge)
        if with_actor:
            loss, entropy = self._actor_part(feature, noise[1])
            loss.backward()
            descend(self._actor, lr=self._actor_lr, **self._step)
            self.metrics.add(actor_loss=loss, entropy=entropy)
        self.critic.target.blend(self.critic.params, self._tau)

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
        with self._autocast():
            with torch.no_grad():
                target, known = self.critic_target(next_feature, reward, discount, noise)
            loss, q = self.critic.loss(feature, action, target, weight)
            return loss, q, self.critic.edge_mass(target), known

    def _actor_loss(self, feature: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        with self._autocast():
            return self.actor_loss(feature, noise)

    def _autocast(self) -> torch.autocast:
        # every weight is used once per pass, and a cache of casts must not outlive a capture
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.amp, cache_enabled=False)

    @torch.no_grad()
    def explore(self, obs: Obs, ended: Tensor) -> Tensor:
        """Actions to learn from; the observations are counted into the moments.

        Args:
            obs: (N, ...) tensors on the device.
            ended: (N,) bool: rows in which an episode has just begun.

        Returns:
            (N, A) in [-1, 1].
        """
        columns = [obs[key] for key in self._keys]
        feature = columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)
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

    def feature(self, obs: Obs) -> Tensor:
        """(B, S) normalised observation."""
        columns = [obs[key] for key in self._keys]
        x = columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)
        return x if self.norm is None else self.norm(x)

    def read_metrics(self) -> Metrics:
        """Means since the last reading; the one place that waits for the device.

        Raises:
            FloatingPointError: a loss is not finite.
        """
        self._latest = self.metrics.read(self.name, self.updates)
        if self.reward_scale is not None and self.updates:
            self._latest["train/reward_scale"] = float(self.reward_scale.scale)
        return dict(self._latest)

    def state_dict(self) -> dict[str, Any]:
        """Weights, averages, moments, optimisers, generators, counters: tensors and numbers."""
        return {
            **{name: part.state_dict() for name, part in self._parts.items() if part is not None},
            "noise": self._noise.get_state(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other parts or sizes.
        """
        parts = {name: part for name, part in self._parts.items() if part is not None}
        missing = sorted(parts.keys() - state.keys())
        if missing:
            raise ValueError(f"the saved state lacks {', '.join(missing)}; it is not of {self.name} with these options")
        for name, part in parts.items():
            part.load_state_dict(state[name])
        restore(self._noise, state["noise"])
        self.updates = int(state["updates"])


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
