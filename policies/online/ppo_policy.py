"""The policy that PPO trains: a Gaussian actor with observation normalisation, in NumPy or on a device."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.actor_critic import (
    ACTIVATIONS,
    LOG_STD_RANGE,
    ActorCriticLayout,
    activate,
    compile_kernel,
    gaussian_logp,
    torch_outputs,
)
from robot_rl.policies.nets.image import features_of
from robot_rl.state import set_generator
from robot_rl.types import Action, Array, IOSpec, Obs, PolicyParts, StateDict
from robot_rl.types.io import PRIVILEGED

OBS_LIMIT = 10.0
COMPILED_ROWS = 4  # beyond, matrix products are as fast
_PICTURES = 256  # rows whose pictures are floats at a time: a rollout of them would be gigabytes
_LOG_2PI = math.log(2.0 * math.pi)
_HALF_LOG_2PI, _LIMIT = np.float32(0.5 * _LOG_2PI), np.float32(OBS_LIMIT)
_LOW, _HIGH, _HALF, _ONE, _ZERO = (np.float32(x) for x in (*LOG_STD_RANGE, 0.5, 1.0, 0.0))


class Moments:
    """Running mean and variance of rows, in float64.

    Args:
        dim: length D of a row; () statistics use D = 1.

    Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances.
    """

    def __init__(self, dim: int) -> None:
        self.count = 0.0
        self.mean, self.var = np.zeros(dim), np.ones(dim)

    def add(self, rows: Tensor) -> None:
        """Count (M, D) further rows; those that hold a number that is not finite are left out."""
        rows = rows[torch.isfinite(rows).all(1)]
        if len(rows) == 0:
            return
        mean, var = (x.cpu().numpy() for x in (rows.double().mean(0), rows.double().var(0, unbiased=False)))
        count = float(len(rows))
        total = self.count + count
        delta = mean - self.mean
        old = self.var * self.count if self.count else np.zeros_like(var)
        self.var = (old + var * count + delta * delta * self.count * count / total) / total
        self.mean = self.mean + delta * count / total
        self.count = total

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors `mean`, `var`, `count`."""
        return {
            "mean": torch.from_numpy(self.mean.copy()),
            "var": torch.from_numpy(self.var.copy()),
            "count": torch.tensor(self.count, dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        self.mean, self.var = (np.array(torch.as_tensor(state[key]).cpu(), np.float64) for key in ("mean", "var"))
        self.count = float(state["count"])


class PpoPolicy:
    """Gaussian actor and its critic on one flat parameter vector that the learner owns.

    NumPy observations are computed in NumPy, which is several times faster than torch at small batches; tensors on a
    device are computed there. What the critic alone reads ("privileged") is no part of what this policy needs to act,
    nor of its state: whoever learns with it saves `critic_state` beside.

    Args:
        io: interface; every observation a vector of floats, or a picture that `layout` has an encoder of.
        layout: where weights lie in `params`.
        params: (layout.size,) float32 on the learner's device, shared.
        activation: "tanh", "relu" or "elu".
        seed: seed of the action noise.
        normalize_obs: observations are moved and scaled by `moments` and clipped to [-10, 10].
        obs_spread: components that deviate more are shrunk to this deviation, and those whose mean is further from 0
            are moved to it; None: all to mean 0 and deviation 1.
        fast: act compiled on a few rows at a time, where numba is installed.
    """

    def __init__(
        self,
        io: IOSpec,
        layout: ActorCriticLayout,
        params: Tensor,
        *,
        activation: str,
        seed: int,
        normalize_obs: bool,
        obs_spread: float | None = None,
        fast: bool = True,
    ) -> None:
        self.io = io.acting
        self._cameras = () if layout.eye is None else tuple(layout.eye.cameras)
        self.moments = Moments(obs_dim(self.io, self._cameras))
        self._critic_moments = Moments(layout.more)
        self._layout, self._params, self._activation = layout, params, activation
        self._normalize, self._spread = normalize_obs, obs_spread
        self._keys = sorted(key for key in self.io.obs if key not in self._cameras)
        self._all, self._code = [*self._keys, *self._cameras], ACTIVATIONS.index(activation)
        self._critic_keys = [*self._keys, PRIVILEGED] if layout.more else self._keys
        self._shared = params.device.type == "cpu"
        self._mirror = params.numpy() if self._shared else params.cpu().numpy()
        self._rng = np.random.default_rng(seed)
        self._device_rng = torch.Generator(device=params.device).manual_seed(seed)
        self._views = layout.views(params)
        self._np = layout.views(self._mirror)
        self._actor = [(self._np[f"weight{i}"][0], self._np[f"bias{i}"][0, 0]) for i in range(layout.depth)]
        self._critic = [(self._np[f"weight{i}"][1], self._np[f"bias{i}"][1, 0]) for i in range(layout.depth)]
        self._act_rows = compile_kernel(act_rows) if fast and self._shared else None
        log_std_at = -1 if layout.state_std else layout.size - layout.action_dim
        self._table = np.append(layout.actor_table(), [[self._code, log_std_at, normalize_obs, 0]], axis=0)
        self.refresh()

    @property
    def parts(self) -> PolicyParts:
        """Its noise can be continued."""
        return PolicyParts(save=self.generator_state, restore=self.load_generator_state)

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget: the policy has no memory."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Sample actions, or take the mean.

        Returns:
            value (B, A) clipped to [-1, 1]; logp (B,) of the sample before clipping (None when deterministic);
            extras "raw" (B, A), that sample.
        """
        first = obs[self._all[0]]
        if isinstance(first, Tensor):
            # also tensors of a GPU simulator for a CPU learner, and where a graph is written, which knows no NumPy
            if first.device.type != "cpu" or torch.compiler.is_exporting():
                return self._act_on_device(obs, deterministic)
            action = self.act({key: obs[key].numpy() for key in self._all}, deterministic=deterministic)
            return Action(
                torch.from_numpy(action.value),
                None if action.logp is None else torch.from_numpy(np.asarray(action.logp)),
                {"raw": torch.from_numpy(action.extras["raw"])},
            )
        if self._act_rows is not None and len(first) <= COMPILED_ROWS:
            return self._act_compiled(obs, deterministic)
        h = self.read(obs)
        for weight, bias in self._actor:
            h = np.dot(h, weight)
            h += bias
            activate(h, self._activation)
        raw = np.dot(h, self._np["actor_weight"])
        raw += self._np["actor_bias"]
        dims = self._layout.action_dim
        logp, log_std = None, None
        if self._layout.state_std:
            log_std = np.minimum(np.maximum(raw[:, dims:], LOG_STD_RANGE[0]), LOG_STD_RANGE[1])
            raw = raw[:, :dims]
        if not deterministic:
            noise = self._rng.standard_normal(raw.shape, np.float32)
            logp = np.einsum("ij,ij->i", noise, noise)
            logp *= -0.5
            if log_std is None:
                logp -= self._log_norm
                noise *= self._std
            else:
                logp -= log_std.sum(-1) + 0.5 * dims * _LOG_2PI
                noise *= np.exp(log_std)
            raw = np.add(noise, raw, out=noise)
        return Action(np.minimum(np.maximum(raw, -1.0), 1.0), logp, {"raw": raw})

    def _act_compiled(self, obs: Obs, deterministic: bool) -> Action:
        assert self._act_rows is not None
        x = obs[self._keys[0]] if len(self._keys) == 1 else np.concatenate([obs[key] for key in self._keys], axis=-1)
        x = np.ascontiguousarray(x, np.float32)  # another kind of array would be compiled for anew
        dims = self._layout.action_dim
        shape = (len(x), dims)
        noise = np.zeros(shape, np.float32) if deterministic else self._rng.standard_normal(shape, np.float32)
        out = np.empty((len(x), 2 * dims + 1), np.float32)
        self._act_rows(self._mirror, self._table, self._scaling, x, noise, out)
        return Action(out[:, dims:-1], None if deterministic else out[:, -1], {"raw": out[:, :dims]})

    def value(self, obs: Obs) -> Array:
        """(B,) the critic's estimates, in the kind of `obs`."""
        first = obs[self._all[0]]
        if isinstance(first, Tensor):
            if first.device.type != "cpu":
                with torch.no_grad():
                    x = self._read_on_device(obs, critic=True)
                    return torch_outputs(self._views, self._layout, x, self._activation)["value"]
            keys = [*self._critic_keys, *self._cameras]
            return torch.from_numpy(np.asarray(self.value({key: obs[key].numpy() for key in keys})))
        x, width = self.read(obs, critic=True), self._layout.obs_dim
        h = x[:, :width]
        for i, (weight, bias) in enumerate(self._critic):
            h = np.dot(h, weight)
            if i == 0 and self._layout.more:
                h += np.dot(x[:, width:], self._np["critic_more"])
            h += bias
            activate(h, self._activation)
        return np.dot(h, self._np["critic_weight"]) + self._np["critic_bias"]

    def read(self, obs: Obs, *, critic: bool = False) -> np.ndarray:
        """(B, S) what the actor reads of NumPy observations; (B, S + P) with what the critic alone reads behind it."""
        parts = [self._features(obs).cpu().numpy()] if self._cameras else []
        if self._critic_keys if critic else self._keys:
            parts.append(self.normalize(obs, critic=critic))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _read_on_device(self, obs: Obs, *, critic: bool = False) -> Tensor:
        parts = [self._features(obs)] if self._cameras else []
        if self._critic_keys if critic else self._keys:
            parts.append(self.normalized_on_device(obs, critic=critic))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    @torch.no_grad()
    def _features(self, obs: Obs) -> Tensor:
        """(B, F) of pictures, on the learner's device."""
        assert self._layout.eye is not None
        images = {key: torch.as_tensor(obs[key]) for key in self._cameras}
        if torch.compiler.is_exporting():  # a graph has any number of rows
            return features_of(self._layout.eye, self._views, images)
        parts = zip(*(image.split(_PICTURES) for image in images.values()))
        device = self._params.device
        return torch.cat(
            [
                features_of(self._layout.eye, self._views, {key: x.to(device) for key, x in zip(images, part)})
                for part in parts
            ]
        )

    def normalize(self, obs: Obs, *, critic: bool = False) -> np.ndarray:
        """The part of `read` that is vectors: (B, S + P) without the features of pictures."""
        keys = self._critic_keys if critic else self._keys
        x = obs[keys[0]] if len(keys) == 1 else np.concatenate([obs[key] for key in keys], axis=-1)
        x = x.astype(np.float32, copy=False)
        if not self._normalize:
            return x
        x = x - self._mean[: x.shape[-1]]
        x *= self._scale[: x.shape[-1]]
        return np.minimum(np.maximum(x, -OBS_LIMIT, out=x), OBS_LIMIT, out=x)

    def normalized_on_device(self, obs: Obs, *, critic: bool = False) -> Tensor:
        """The same of tensors, on the learner's device."""
        keys = self._critic_keys if critic else self._keys
        x = torch.cat([obs[key].to(self._params.device) for key in keys], dim=-1)
        if not self._normalize:
            return x
        width = x.shape[-1]
        return ((x - self._device_mean[:width]) * self._device_scale[:width]).clamp(-OBS_LIMIT, OBS_LIMIT)

    def observe(self, obs: Obs) -> None:
        """Count tensors (M, ...) of observations into the moments; takes effect at once."""
        if self._normalize and self._keys:
            self.moments.add(torch.cat([obs[key] for key in self._keys], dim=-1))
        if self._normalize and self._layout.more:
            self._critic_moments.add(obs[PRIVILEGED])
        self.refresh()

    def refresh(self) -> None:
        """Recompute what is derived from parameters and moments; called by whoever changes them."""
        if not self._shared:
            self._mirror[:] = self._params.cpu().numpy()
        if not self._layout.state_std:
            log_std = np.clip(self._np["log_std"], *LOG_STD_RANGE)
            self._std = np.exp(log_std)
            self._log_norm = np.float32(log_std.sum() + 0.5 * self._layout.action_dim * _LOG_2PI)
        both = self.moments, self._critic_moments
        mean, var = (np.concatenate(parts) for parts in zip(*((x.mean, x.var) for x in both)))
        scale = (self._spread or 1.0) / np.sqrt(var + 1e-8)
        if (
            self._spread is not None
        ):  # moving what is small already loses the double pendulum's rare starts (docs/ppo.md)
            mean = np.sign(mean) * np.maximum(np.abs(mean) - self._spread, 0.0)
            scale = np.minimum(scale, 1.0)
        self._mean, self._scale = mean.astype(np.float32), scale.astype(np.float32)
        self._scaling = np.stack([self._mean, self._scale])
        device = self._params.device
        self._device_mean = torch.from_numpy(self._mean).to(device)
        self._device_scale = torch.from_numpy(self._scale).to(device)

    def state_dict(self) -> dict[str, Tensor]:
        """Weights by name and the observation moments; tensors on the CPU."""
        state = {name: self._views[name].detach().cpu().clone() for name in self._acting_shapes}
        return {**state, **{f"obs_{key}": value for key, value in self.moments.state_dict().items()}}

    @property
    def _acting_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, shape in self._layout.shapes.items() if name != "critic_more"}

    def critic_state(self) -> dict[str, Tensor]:
        """Weights and moments of what the critic alone reads; empty where that is nothing."""
        if not self._layout.more:
            return {}
        return {"weight": self._views["critic_more"].detach().cpu().clone(), **self._critic_moments.state_dict()}

    def load_critic_state(self, state: StateDict) -> None:
        """Copy in place what `critic_state` gave.

        Raises:
            ValueError: the saved critic read another number of privileged values.
        """
        have = tuple(state["weight"].shape) if state else ()
        if have != self._layout.shapes.get("critic_more", ()):
            raise ValueError(
                f"the saved critic reads {have[:1]} privileged values, and this one {(self._layout.more,)}; use the "
                "environment and critic_state of the run that saved it"
            )
        if state:
            with torch.no_grad():
                self._views["critic_more"].copy_(torch.as_tensor(state["weight"]))
            self._critic_moments.load_state_dict(state)
            self.refresh()

    def load_state_dict(self, state: StateDict) -> None:
        """Copy in place.

        Raises:
            ValueError: names or shapes differ from this policy's.
        """
        shapes = self._acting_shapes
        have = {name: tuple(state[name].shape) for name in shapes if name in state}
        if have != shapes:
            raise ValueError(
                f"the saved PPO networks have shapes {have}, expected {shapes}; "
                "use the same hidden, log_std, encoder and environment as the run that saved them"
            )
        with torch.no_grad():
            for name in shapes:
                self._views[name].copy_(torch.as_tensor(state[name]))
        self.moments.load_state_dict({key: state[f"obs_{key}"] for key in ("mean", "var", "count")})
        self.refresh()

    def generator_state(self) -> StateDict:
        """State of the action noise."""
        return {"numpy": self._rng.bit_generator.state, "device": self._device_rng.get_state()}

    def load_generator_state(self, state: StateDict) -> None:
        """Inverse of `generator_state`."""
        self._rng.bit_generator.state = state["numpy"]
        set_generator(self._device_rng, state["device"])

    @torch.no_grad()
    def _act_on_device(self, obs: Obs, deterministic: bool) -> Action:
        x = self._read_on_device(obs)
        outputs = torch_outputs(self._views, self._layout, x, self._activation)
        mean, log_std = outputs["mean"], outputs["log_std"].clamp(*LOG_STD_RANGE)
        if deterministic:
            return Action(mean.clamp(-1.0, 1.0), None, {"raw": mean})
        noise = torch.randn(mean.shape, generator=self._device_rng, device=mean.device)
        raw = mean + log_std.exp() * noise
        return Action(raw.clamp(-1.0, 1.0), gaussian_logp(raw, mean, log_std), {"raw": raw})


def obs_dim(io: IOSpec, cameras: Collection[str] = ()) -> int:
    """Length S of all observation vectors together, those of `cameras` left out.

    Raises:
        ValueError: an observation is no vector of floats.
    """
    for key, (shape, dtype) in io.obs.items():
        if key not in cameras and (len(shape) != 1 or not dtype.startswith("float")):
            raise ValueError(
                f"this method reads vectors of floats, got observation '{key}' of shape {shape} and type {dtype}; "
                "build the environment without cameras, or train with policy=online/ppo or policy=online/sac, which "
                "have an image encoder"
            )
    if not io.obs:
        raise ValueError("the interface has no observation; expected at least 'state'")
    return sum(shape[0] for key, (shape, _) in io.obs.items() if key not in cameras)


def act_rows(
    params: np.ndarray, table: np.ndarray, scaling: np.ndarray, obs: np.ndarray, noise: np.ndarray, out: np.ndarray
) -> None:
    """Sample actions of a few rows; plain Python, to be compiled. Constants are float32: a Python number would widen.

    Args:
        params: flat parameters.
        table: (L + 1, 4) int64 per layer, the head last: where weight and bias start, inputs, outputs; then activation
            (0 tanh, 1 relu, 2 elu), where the free log standard deviations start (-1 when the head gives them), and
            whether observations are normalised.
        scaling: (2, S) shift of the observation and its factor.
        obs: (B, S).
        noise: (B, A) standard normal, or zeros for the mean action.
        out: (B, 2 A + 1) receives the sample, the sample clipped to [-1, 1], and its log density.
    """
    rows, dims = noise.shape
    last = len(table) - 2
    activation, log_std_at, normalize = table[last + 1, 0], table[last + 1, 1], table[last + 1, 2]
    width = 0
    for layer in range(last + 1):
        width = max(width, table[layer, 2], table[layer, 3])
    x, y = np.empty(width, np.float32), np.empty(width, np.float32)
    for row in range(rows):
        for i in range(obs.shape[1]):
            x[i] = obs[row, i]
            if normalize:
                x[i] = min(max((x[i] - scaling[0, i]) * scaling[1, i], -_LIMIT), _LIMIT)
        for layer in range(last + 1):
            weight, bias, inputs, outputs = table[layer]
            for j in range(outputs):
                y[j] = params[bias + j]
            whole = inputs // 4 * 4
            for i in range(0, whole, 4):  # four rows of the weight at a time: y is loaded and stored a quarter as often
                x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
                block = params[weight + i * outputs : weight + (i + 4) * outputs]
                for j in range(outputs):
                    y[j] += (
                        x0 * block[j]
                        + x1 * block[outputs + j]
                        + x2 * block[2 * outputs + j]
                        + x3 * block[3 * outputs + j]
                    )
            for i in range(whole, inputs):
                for j in range(outputs):
                    y[j] += x[i] * params[weight + i * outputs + j]
            if layer < last:
                for j in range(outputs):
                    if activation == 0:
                        y[j] = math.tanh(y[j])
                    elif activation == 1:
                        y[j] = max(y[j], _ZERO)
                    elif y[j] < _ZERO:
                        y[j] = math.expm1(y[j])
            x, y = y, x
        total = _ZERO
        for j in range(dims):
            log_std = params[log_std_at + j] if log_std_at >= 0 else x[dims + j]
            log_std = min(max(log_std, _LOW), _HIGH)
            total += log_std + _HALF_LOG_2PI + _HALF * noise[row, j] * noise[row, j]
            sample = x[j] + math.exp(log_std) * noise[row, j]
            out[row, j] = sample
            out[row, dims + j] = min(max(sample, -_ONE), _ONE)
        out[row, 2 * dims] = -total
