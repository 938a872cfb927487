"""Soft actor-critic with ensembles, categorical values and images; RLPD is a configuration of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import SquashedSample, squash, squash_grad
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.image import EncoderShape, ImageEncoder, random_shift
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.squashed_policy import SquashedGaussianPolicy
from robot_rl.policies.nets.value_heads import RewardScale, build_head
from robot_rl.types import IOSpec, Learner, Metrics, Obs, Transitions

_AUTO_RANGE = 5.0  # categorical values live in [-5, 5] when the support is automatic


class Sac(Learner):
    """Soft actor-critic.

    Target: y = r + discount * (min over a random subset of target critics of Q(s', a') - alpha log pi(a'|s')), where
    `discount` comes with the data: gamma^k (1 - terminated), so n-step returns and truncation are the sampler's matter.

    `update` draws `utd` batches of `batch_size` rows, one per critic step, and updates actor and temperature once, on
    the last of them. All randomness comes from one generator seeded with `seed`.

    Source: Haarnoja et al., Soft Actor-Critic Algorithms and Applications (automatic temperature); Chen et al., REDQ
    (random subset); Ball et al., Efficient Online RL with Offline Data (LayerNorm critics, update ratio, mean over
    critics in the actor loss). Where we differ: the actor step reads image features computed before the critic step.
    """

    consumes = "transitions"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 256,
        hidden: tuple[int, ...] = (256, 256),
        critics: int = 2,
        subset: int | None = None,
        layer_norm: bool = False,
        actor_layer_norm: bool = False,
        utd: int = 1,
        actor_delay: int = 1,
        actor_reduce: str = "min",
        lr: float = 3e-4,
        actor_lr: float | None = None,
        alpha_lr: float | None = None,
        tau: float = 0.005,
        init_alpha: float = 1.0,
        target_entropy: float | str = "auto",
        backup_entropy: bool = True,
        value_head: str = "mse",
        value_range: tuple[float, float] | str = "auto",
        bins: int = 101,
        sigma_ratio: float = 0.75,
        normalize_obs: bool | str = False,
        encoder_channels: tuple[int, ...] = (32, 32, 32, 32),
        encoder_strides: tuple[int, ...] = (2, 2, 1, 1),
        latent: int = 50,
        shift_pad: int = 4,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: int = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: observation "state" and or "image.<camera>"; action size.
            seed: of initial weights, noise, subsets and augmentation.
            device: torch device.
            gamma: discount per step, part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per critic step.
            hidden: widths of the hidden layers of actor and critics.
            critics: ensemble size E.
            subset: how many random target critics the minimum runs over; None means all.
            layer_norm: LayerNorm in the critics.
            actor_layer_norm: LayerNorm in the actor.
            utd: critic steps per `update`.
            actor_delay: the actor learns in every n-th `update`.
            actor_reduce: "min" or "mean" over critics in the actor loss.
            lr: step size of the critics (and encoder).
            actor_lr: step size of the actor; None means `lr`.
            alpha_lr: step size of the temperature; None means `lr`, 0 keeps it fixed.
            tau: Polyak rate of the target critics, after each critic step.
            init_alpha: temperature at the start.
            target_entropy: a number, "auto" (-A) or "half" (-A / 2).
            backup_entropy: whether the target contains the entropy term.
            value_head: "mse", "twohot", "hlgauss", "c51" or "quantile".
            value_range: support of the categorical heads in units of return, or "auto": rewards are divided by a
                running scale so that values fit [-5, 5]; temperature then counts in scaled reward.
            bins: outputs of the categorical heads.
            sigma_ratio: HL-Gauss blur in bin widths.
            normalize_obs: standardise "state" with running moments, stored in the policy; "auto": where its components
                have no names of their own but places ("observation[3]"), as those of Gymnasium tasks, whose units vary.
                Worlds that name theirs have scaled them, and standardising what hardly varies slows learning.
            encoder_channels: channels of the image encoder's convolutions.
            encoder_strides: strides of them.
            latent: features per camera.
            shift_pad: random-shift augmentation of images in pixels; 0 for none.
            matmul: "float32", "bf16" (square products in bfloat16, all else float32) or "auto" (bf16 where native).
                bf16 is about 1.3 times faster but not cleared of costing return (docs/sac.md), so not the default.
            kernel: "explicit", "autograd" or "auto".
            metrics_every: metrics are computed in every n-th `update`; other calls return the latest.

        Raises:
            ValueError: an option outside its range.
        """
        _check(io, critics, subset, utd, actor_delay, actor_reduce, tau, batch_size, gamma)
        self.io, self.batch_size, self.utd, self.tau, self.gamma = io, batch_size, utd, tau, gamma
        self._actor_delay, self._actor_reduce, self._backup_entropy = actor_delay, actor_reduce, backup_entropy
        self._lr = lr
        self._actor_lr = lr if actor_lr is None else actor_lr
        self._alpha_lr = lr if alpha_lr is None else alpha_lr
        self._critics, self._subset = critics, critics if subset is None else subset
        self._shift_pad, self._metrics_every = shift_pad, metrics_every
        self._device = torch.device(device)
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        self._target_entropy = _entropy_target(target_entropy, io.action_dim)

        state = io.obs["state"][0][0] if "state" in io.obs else 0
        cameras = {key: shape for key, (shape, _) in io.obs.items() if key.startswith("image.")}
        if normalize_obs == "auto":
            normalize_obs = all(name.endswith("]") for name in io.obs_names)
        if not isinstance(normalize_obs, bool):
            raise ValueError(f"normalize_obs is {normalize_obs!r}, expected true, false or auto")
        self._norm = RunningNorm(state, device=self._device) if normalize_obs and state else None
        auto = isinstance(value_range, str)
        if auto and value_range != "auto":
            raise ValueError(f"value_range is '{value_range}', expected 'auto' or two numbers")
        low, high = (-_AUTO_RANGE, _AUTO_RANGE) if auto else (float(value_range[0]), float(value_range[1]))
        self._head = build_head(value_head, low=low, high=high, bins=bins, sigma_ratio=sigma_ratio, device=self._device)
        self._reward_scale = (
            RewardScale(_AUTO_RANGE, device=self._device) if auto and value_head not in ("mse", "quantile") else None
        )

        encoder = EncoderShape(cameras, encoder_channels, encoder_strides, latent) if cameras else None
        self._features = (encoder.outputs if encoder else 0) + state
        width = self._features + io.action_dim
        critic_shape = MlpShape(critics, width, tuple(hidden), self._head.outputs, layer_norm, "critic.")
        actor_shape = MlpShape(1, self._features, tuple(hidden), 2 * io.action_dim, actor_layer_norm, "actor.")
        shapes = {**(encoder.shapes() if encoder else {}), **critic_shape.shapes()}
        self._critic_params = FlatParams(shapes, device=self._device)
        self._actor_params = FlatParams(actor_shape.shapes(), device=self._device)
        self._alpha_params = FlatParams({"log_alpha": (1,)}, device=self._device)
        self._alpha_params.flat[0] = math.log(init_alpha)
        if encoder:
            encoder.initialise(self._critic_params, self._generator)
        critic_shape.initialise(self._critic_params, self._generator)
        actor_shape.initialise(self._actor_params, self._generator)
        self._target_params = self._critic_params.twin()

        self._actor = build_mlp(actor_shape, self._actor_params, kernel=kernel, matmul=matmul)
        self._critic = build_mlp(critic_shape, self._critic_params, kernel=kernel, matmul=matmul)
        self._target = build_mlp(critic_shape, self._target_params, kernel=kernel, matmul=matmul)
        self._encoder = ImageEncoder(encoder, self._critic_params) if encoder else None
        self._target_encoder = ImageEncoder(encoder, self._target_params) if encoder else None
        self.policy = SquashedGaussianPolicy(
            io, actor_shape, self._actor_params, seed=seed + 1, normalizer=self._norm, encoder_shape=encoder
        )
        self.policy.follow_encoder(self._critic_params)
        self.updates = 0
        self._metrics: Metrics = {}
        self._seen: tuple[Tensor, Transitions] | None = None

    @property
    def alpha(self) -> float:
        """The temperature."""
        return math.exp(self._alpha_params.flat[0].item())

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """`utd` critic steps, each on its own batch, then one step of actor and temperature on the last batch.

        Args:
            batches: endless batches of `batch_size` rows.

        Returns:
            The latest metrics: train/critic_loss, train/q, train/target, train/alpha, train/entropy, train/actor_loss
            and, for categorical heads, train/head_clamped and train/head_edge_mass.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        self.updates += 1
        measure = self._metrics_every > 0 and self.updates % self._metrics_every == 0
        with_actor = self.updates % self._actor_delay == 0
        metrics: dict[str, Tensor] = {}
        for i in range(self.utd):
            last = i == self.utd - 1
            batch = _valid_rows(next(batches))
            feature, sample = self._critic_step(batch, last and with_actor, metrics if last and measure else None)
            if sample is not None:
                self._actor_step(feature, sample, metrics if measure else None)
        self.policy.follow_encoder(self._critic_params)
        if measure:
            self._metrics = self._read(metrics)
        return dict(self._metrics)

    def _critic_step(
        self, batch: Transitions, both: bool, metrics: dict[str, Tensor] | None
    ) -> tuple[Tensor, SquashedSample | None]:
        """One gradient step of the critics; returns features of s and, if `both`, the actor's sample there."""
        size = batch.reward.shape[0]
        state, next_state = self._state(batch)
        images, next_images = self._images(batch.obs), self._images(batch.next_obs)
        encoded: Tensor | None = None
        with torch.no_grad():
            if self._encoder is not None and self._target_encoder is not None:
                with torch.enable_grad():
                    encoded = self._encoder(images)
                feature = _join(encoded.detach(), state)  # the actor reads it detached: the critic owns the encoder
                next_feature = _join(self._encoder(next_images), next_state)
                next_target_feature = _join(self._target_encoder(next_images), next_state)
            else:
                feature, next_feature, next_target_feature = _join(state), _join(next_state), _join(next_state)

            # the actor runs once on s' and s together: its weights do not change before its own step
            rows = torch.cat([next_feature, feature]) if both else next_feature
            raw = self._actor.forward(rows)[0]
            noise = torch.randn(len(rows), self.io.action_dim, generator=self._generator, device=self._device)
            sample = squash(raw, noise)
            alpha = self.alpha
            if both:
                self._seen = (raw[size:], batch)
            target = self._bootstrap(next_target_feature, sample.action[:size], sample.logp[:size], batch, alpha)

            width = 0 if encoded is None else encoded.shape[1]
            out, d_feature = self._critic.fit(
                torch.cat([feature, batch.action], dim=1),
                lambda outputs: self._head.loss_grad(outputs, target),
                inputs=slice(0, width) if width else None,
            )
            if encoded is not None and self._encoder is not None and d_feature is not None:
                self._encoder.backward(encoded, d_feature)
            if metrics is not None:
                metrics["critic_loss"] = self._head.loss(out, target)
                metrics["q"] = self._head.value(out).mean()
                metrics["target"] = self._head.scalar(target).mean()
                metrics |= self._head.diagnostics(out, target)
            self._critic_params.adam(self._lr)
            self._target_params.blend(self._critic_params, self.tau)
            self._critic.refresh()
            self._target.refresh()
        return feature, sample.part(slice(size, 2 * size)) if both else None

    def _bootstrap(self, feature: Tensor, action: Tensor, logp: Tensor, batch: Transitions, alpha: float) -> Tensor:
        """Target of the critics, (B,) or what their head learns from."""
        members: list[int] | None = None
        if self._subset < self._critics:
            order = torch.randperm(self._critics, generator=self._generator, device=self._device)
            members = order[: self._subset].tolist()
        out = self._target.forward(torch.cat([feature, action], dim=1), members)
        cost = self._entropy_cost(feature, action, logp, alpha) if self._backup_entropy else None
        reward = batch.reward
        if self._reward_scale is not None:
            self._reward_scale.observe(reward, batch.discount)
            reward = reward * (1.0 / self._reward_scale.scale)
        return self._head.backup(out, reward, batch.discount, cost)

    @torch.no_grad()
    def _actor_step(self, feature: Tensor, sample: SquashedSample, metrics: dict[str, Tensor] | None) -> None:
        """One gradient step of actor and temperature through the critics that were just updated."""
        size, alpha = len(feature), self.alpha
        out = self._critic.forward(torch.cat([feature, sample.action], dim=1))
        value = self._head.value(out)
        if self._actor_reduce == "min":
            chosen = (value == value.amin(0)).to(value.dtype)
            d_value = chosen.mul_(-1.0 / size).div_(chosen.sum(0) * -size)
        else:
            d_value = torch.full_like(value, -1.0 / (size * self._critics))
        d_action = self._critic.backward(
            self._head.value_grad(out, d_value), weights=False, inputs=slice(self._features, None)
        )
        assert d_action is not None
        d_raw = self._actor_grad(feature, sample, d_action, alpha)
        self._actor.backward(d_raw[None], rows=slice(size, 2 * size))
        self._actor_params.adam(self._actor_lr)
        self._actor.refresh()
        mean_logp = sample.logp.mean()
        if self._alpha_lr:
            self._alpha_params.grad[0] = -(mean_logp + self._target_entropy)
            self._alpha_params.adam(self._alpha_lr)
        if metrics is not None:
            q = value.amin(0) if self._actor_reduce == "min" else value.mean(0)
            metrics["actor_loss"] = alpha * mean_logp - q.mean()
            metrics["entropy"] = -mean_logp

    def _entropy_cost(self, feature: Tensor, action: Tensor, logp: Tensor, alpha: float) -> Tensor:
        """(B,) what the backup subtracts from the value of s'; methods that extend this one add to it."""
        return alpha * logp

    def _actor_grad(self, feature: Tensor, sample: SquashedSample, d_action: Tensor, alpha: float) -> Tensor:
        """(B, 2A) gradient of the actor's loss by its output; methods that extend this one add terms.

        `self._seen` holds the actor's output (B, 2A) at `feature` and the batch that it came from.
        """
        return squash_grad(sample, d_action, alpha / len(feature))

    def _state(self, batch: Transitions) -> tuple[Tensor | None, Tensor | None]:
        state, next_state = batch.obs.get("state"), batch.next_obs.get("state")
        if state is None or next_state is None or self._norm is None:
            return state, next_state
        self._norm.observe(state)
        return self._norm(state), self._norm(next_state)

    def _images(self, obs: Obs) -> Obs:
        if self._encoder is None:
            return {}
        return {key: random_shift(obs[key], self._shift_pad, self._generator) for key in self._encoder.shape.cameras}

    def _read(self, metrics: dict[str, Tensor]) -> Metrics:
        values = {f"train/{name}": float(value) for name, value in metrics.items()}
        values["train/alpha"] = self.alpha
        if self._reward_scale is not None:
            values["train/reward_scale"] = self._reward_scale.scale
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            raise FloatingPointError(
                f"SAC diverged at update {self.updates}: {', '.join(bad)} not finite; resume from an earlier "
                "checkpoint, look for non-finite rewards or observations in the data, or lower lr"
            )
        return values

    def calm(self) -> None:
        """Halve all step sizes: after a divergence."""
        self._lr, self._actor_lr, self._alpha_lr = 0.5 * self._lr, 0.5 * self._actor_lr, 0.5 * self._alpha_lr

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, generators, moments and counters: tensors and numbers."""
        state: dict[str, Any] = {
            "actor": self._actor_params.state_dict(),
            "critic": self._critic_params.state_dict(),
            "target": self._target_params.state_dict(),
            "alpha": self._alpha_params.state_dict(),
            "generator": self._generator.get_state(),
            "policy": self.policy.state_dict(),
            "updates": self.updates,
            "metrics": dict(self._metrics),
        }
        if self._reward_scale is not None:
            state["reward_scale"] = self._reward_scale.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._actor_params.load_state_dict(state["actor"])
        self._critic_params.load_state_dict(state["critic"])
        self._target_params.load_state_dict(state["target"])
        self._alpha_params.load_state_dict(state["alpha"])
        self._generator.set_state(state["generator"].cpu())
        self.policy.load_state_dict(state["policy"])
        self.updates = int(state["updates"])
        self._metrics = {name: float(value) for name, value in state["metrics"].items()}
        if self._reward_scale is not None:
            self._reward_scale.load_state_dict(state["reward_scale"])
        for network in (self._actor, self._critic, self._target):
            network.refresh()


def _join(*parts: Tensor | None) -> Tensor:
    present = [part for part in parts if part is not None]
    return present[0] if len(present) == 1 else torch.cat(present, dim=1)


def _valid_rows(batch: Transitions) -> Transitions:
    """Only rows that the mask admits; almost always the batch itself."""
    if bool(batch.mask.all()):
        return batch
    keep = batch.mask
    if not bool(keep.any()):
        raise ValueError("every row of the batch is masked out; expected at least one valid transition")
    cut: dict[str, Any] = {
        field.name: getattr(batch, field.name)[keep]
        for field in dataclasses.fields(batch)
        if field.name not in ("obs", "next_obs", "extras")
    }
    for name in ("obs", "next_obs", "extras"):
        cut[name] = {key: value[keep] for key, value in getattr(batch, name).items()}
    return Transitions(**cut)


def _entropy_target(target: float | str, actions: int) -> float:
    if not isinstance(target, str):
        return float(target)
    named = {"auto": -float(actions), "half": -actions / 2}
    if target not in named:
        raise ValueError(f"target_entropy is '{target}', expected a number or one of {', '.join(named)}")
    return named[target]


def _check(
    io: IOSpec,
    critics: int,
    subset: int | None,
    utd: int,
    actor_delay: int,
    actor_reduce: str,
    tau: float,
    batch_size: int,
    gamma: float,
) -> None:
    known = [key for key in io.obs if key == "state" or key.startswith("image.")]
    if not known:
        raise ValueError(f"SAC reads 'state' and 'image.<camera>', got only {sorted(io.obs)}")
    if critics < 1 or not 1 <= (critics if subset is None else subset) <= critics:
        raise ValueError(f"subset is {subset} of {critics} critics, expected 1 <= subset <= critics, or null for all")
    if min(utd, actor_delay, batch_size) < 1:
        raise ValueError(f"utd, actor_delay and batch_size are {utd}, {actor_delay}, {batch_size}; expected >= 1")
    if actor_reduce not in ("min", "mean"):
        raise ValueError(f"actor_reduce is '{actor_reduce}', expected 'min' or 'mean'")
    if not 0.0 < tau <= 1.0 or not 0.0 < gamma <= 1.0:
        raise ValueError(f"tau is {tau} and gamma is {gamma}, expected both in (0, 1]")
