"""The acting half of SAC: a squashed Gaussian policy with a NumPy path that answers one observation in microseconds."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import LOG_STD_MAX, LOG_STD_MIN
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.image import EncoderShape, ImageEncoder
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.policies.nets.normalizer import Centre, FixedNorm, RunningNorm
from robot_rl.state import Saved
from robot_rl.types import Action, Array, IOSpec, Obs, PolicyParts, StateDict


def noise_of(rows: np.ndarray, size: int) -> np.ndarray:
    """(B, size) standard normal numbers, float32, that belong to the rows (B, ...): the same for the same row, on any
    device."""
    rows = rows.astype(np.float32, copy=False)
    seeds = [zlib.crc32(row.tobytes()) for row in rows]
    return np.stack([np.random.default_rng(seed).standard_normal(size, np.float32) for seed in seeds])


class SquashedGaussianPolicy(Saved):
    """a = tanh(mean + std * noise), shared with the learner that trains it: no copy when weights change.

    NumPy observations are answered with plain NumPy on views of the weights (CPU, state observations); tensors and
    images go through torch. `Action.logp` is None: off-policy learners do not read it.
    """

    def __init__(
        self,
        io: IOSpec,
        shape: MlpShape,
        params: FlatParams,
        *,
        seed: int = 0,
        normalizer: RunningNorm | FixedNorm | Centre | None = None,
        encoder_shape: EncoderShape | None = None,
        log_std_min: float = LOG_STD_MIN,
        dither: float = 0.0,
    ) -> None:
        """Bind to the actor's parameters.

        Args:
            io: what the policy sees and does.
            shape: one member, outputs 2A (mean and log-std).
            params: holds `shape.shapes()`; shared, never replaced.
            seed: of the exploration noise.
            normalizer: of "state", shared; None for raw observations.
            encoder_shape: of the images, or None; the policy owns a copy of the encoder's parameters.
            log_std_min: lower limit of the log-std.
            dither: share of the noise that stays where it acts "deterministically". There it belongs to the observation
                (`noise_of`), so that the same one is always answered alike, and trials leave that of training alone.
        """
        self.io, self._shape, self._params, self._normalizer = io, shape, params, normalizer
        self._device, self._log_std_min = params.flat.device, log_std_min
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        self._dither = dither
        self._state = io.obs.get("state") is not None
        self._encoder: ImageEncoder | None = None
        if encoder_shape is not None:
            own = FlatParams(encoder_shape.shapes(), device=self._device, trainable=False)
            self._encoder = ImageEncoder(encoder_shape, own)
        depth = len(shape.hidden)
        names = [f"{shape.prefix}{kind}{i}" for i in range(depth + 1) for kind in ("weight", "bias")]
        flat = [params.view[name].detach()[0] for name in names]
        self._layers = list(zip(flat[::2], flat[1::2]))
        self._norms: list[tuple[Tensor, Tensor]] = []
        if shape.layer_norm:
            view, prefix = params.view, shape.prefix
            self._norms = [
                (view[f"{prefix}scale{i}"].detach()[0], view[f"{prefix}shift{i}"].detach()[0]) for i in range(depth)
            ]
        fast = self._device.type == "cpu" and encoder_shape is None and not shape.layer_norm
        self._arrays = [(w.numpy(), b.numpy()) for w, b in self._layers] if fast else None
        self._moments = normalizer.numpy() if fast and normalizer is not None else None

    @property
    def parts(self) -> PolicyParts:
        """A density, and noise that can be repeated."""
        return PolicyParts(log_prob=self.log_prob, reseed=self.reseed, set_dither=self.set_dither)

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget: the policy has no memory."""

    def reseed(self, seed: int) -> None:
        """Begin the exploration noise anew."""
        self._generator.manual_seed(seed)

    def set_dither(self, share: float) -> float:
        """Keep this share of the noise where it acts "deterministically"; returns the one of before."""
        before, self._dither = self._dither, share
        return before

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions.

        Args:
            obs: "state" (B, S) and or "image.<camera>" (B, H, W, C), all NumPy or all torch.
            deterministic: the mean instead of a sample; near it with `dither`.

        Returns:
            Action of (B, A) in [-1, 1], float32, in the kind of the observation.
        """
        if self._arrays is not None and isinstance(obs["state"], np.ndarray):
            return Action(self._act_numpy(obs["state"], deterministic))
        with torch.no_grad():
            as_numpy = isinstance(next(iter(obs.values())), np.ndarray)
            action = self._act_torch(obs, deterministic)
            return Action(action.cpu().numpy() if as_numpy else action)

    def _act_numpy(self, state: np.ndarray, deterministic: bool) -> np.ndarray:
        assert self._arrays is not None
        one = len(state) == 1  # a vector times a matrix: half the time of a one-row matrix product
        h = (state[0] if one else state).astype(np.float32, copy=False)
        if self._moments is not None and self._normalizer is not None and self._normalizer.active:
            h = (h - self._moments[0]) * self._moments[1]
        for weight, bias in self._arrays[:-1]:
            h = h.dot(weight)
            h += bias
            np.maximum(h, 0.0, out=h)
        weight, bias = self._arrays[-1]
        out = h.dot(weight)
        out += bias
        size = out.shape[-1] // 2
        mean = out[..., :size]
        noise = self._noise({"state": state}, size, deterministic)
        if noise is not None:
            std = np.exp(np.clip(out[..., size:], self._log_std_min, LOG_STD_MAX))
            mean = mean + std * noise.numpy().reshape(mean.shape)
        action = np.tanh(mean)
        return action[None] if one else action

    def _act_torch(self, obs: Obs, deterministic: bool) -> Tensor:
        mean, log_std = self._raw(self._features(obs)).chunk(2, dim=-1)
        noise = self._noise(obs, mean.shape[1], deterministic)
        if noise is None:
            return mean.tanh()
        return torch.addcmul(mean, log_std.clamp(self._log_std_min, LOG_STD_MAX).exp(), noise).tanh()

    def _noise(self, obs: Obs, size: int, deterministic: bool) -> Tensor | None:
        """(B, size) in standard deviations; None for none."""
        seen = obs["state"] if self._state else next(iter(obs.values()))
        if not deterministic:
            return torch.randn((len(seen), size), generator=self._generator, device=self._device)
        if not self._dither:
            return None
        rows = seen.detach().cpu().numpy() if isinstance(seen, Tensor) else np.asarray(seen)
        return torch.from_numpy(self._dither * noise_of(rows, size)).to(self._device)

    def _raw(self, h: Tensor) -> Tensor:
        """(B, 2A) mean and log-std of what the network reads (B, S)."""
        for i, (weight, bias) in enumerate(self._layers[:-1]):
            h = torch.addmm(bias, h, weight)
            if self._norms:
                h = torch.nn.functional.layer_norm(h, (h.shape[1],), *self._norms[i])
            h = h.relu_()
        weight, bias = self._layers[-1]
        return torch.addmm(bias, h, weight)

    @torch.no_grad()
    def log_prob(self, obs: Obs, action: Tensor) -> Tensor:
        """(B,) log-density of actions (B, A) in (-1, 1); for off-policy evaluation."""
        mean, log_std = self._raw(self._features(obs)).chunk(2, dim=-1)
        log_std = log_std.clamp(self._log_std_min, LOG_STD_MAX)
        bound = action.to(mean).clamp(-1 + 1e-6, 1 - 1e-6)
        z = (torch.atanh(bound) - mean) * (-log_std).exp()
        density = -0.5 * z.square() - log_std - 0.9189385332046727 - torch.log1p(-bound.square())
        return density.sum(-1)

    def _features(self, obs: Obs) -> Tensor:
        parts = []
        if self._encoder is not None:
            images = {key: torch.as_tensor(obs[key]).to(self._device) for key in self._encoder.shape.cameras}
            parts.append(self._encoder(images))
        if self._state:
            state = torch.as_tensor(obs["state"]).to(self._device, torch.float32)
            parts.append(state if self._normalizer is None else self._normalizer(state))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def follow_encoder(self, params: FlatParams) -> None:
        """Copy the learner's encoder parameters (images only)."""
        if self._encoder is not None:
            with torch.no_grad():
                for name in self._encoder.names:
                    self._encoder.params.view[name].copy_(params.view[name])

    def saved_parts(self) -> dict[str, object]:
        """Weights, noise generator, and normaliser and encoder, where there are some."""
        encoder = None if self._encoder is None else self._encoder.params.flat
        parts = {"actor": self._params.flat, "generator": self._generator}
        if isinstance(self._normalizer, Centre):
            return {**parts, "encoder": encoder, "centre": self._normalizer if self._normalizer.active else None}
        return {**parts, "encoder": encoder, "normalizer": self._normalizer}

    def load_state_dict(self, state: StateDict, /) -> None:
        """See `Saved`; states are moved where they were in the saved policy."""
        if isinstance(self._normalizer, Centre):
            self._normalizer.active, self._normalizer.open = "centre" in state, False
        super().load_state_dict(state)
