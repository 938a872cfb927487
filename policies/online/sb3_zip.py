"""Stable-Baselines3 agents from their zip files as policies: weights only, nothing in the file is executed."""

from __future__ import annotations

import io as bytes_io
import json
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.policies.online import sb3_moments
from robot_rl.types import Action, Array, IOSpec, Obs, PolicyParts, action_of

ACTIVATIONS = ("tanh", "relu", "elu")
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
_LOG_STD_RANGE = (-20.0, 2.0)  # of SB3's squashed Gaussian
_LAYERS = re.compile(r"(actor\.(latent_pi|mu)|mlp_extractor\.(shared|policy)_net|q_net\.q_net)\.")
_GSDE_CLIP = 2.0  # SB3's default clip_mean with state-dependent exploration


@dataclass
class _Network:
    """What the file holds: layers (weight (in, out), bias), how actions come out of the last one."""

    family: str
    layers: list[tuple[np.ndarray, np.ndarray]]
    head: tuple[np.ndarray, np.ndarray]
    log_std: tuple[np.ndarray, np.ndarray] | np.ndarray | None
    squash: bool
    clip_mean: float | None
    chooses: bool = False
    """The last layer gives a preference for each choice: logits of PPO, values of DQN."""


class Sb3Policy:
    """A Stable-Baselines3 agent (SAC, TQC, TD3, DDPG, PPO, A2C, TRPO, DQN on vector observations) as a policy.

    The architecture comes from the tensors' names and shapes; the pickles inside the file are never opened. The actor
    runs in NumPy.

    Args:
        path: the zip that `model.save` wrote.
        io: interface of the environment to act in; its "state" is what the agent sees.
        device: accepted like every policy does; the actor always runs on the CPU.
        activation: hidden activation "tanh", "relu" or "elu"; None reads it from the file's text, else takes SB3's
            default (relu for SAC, TQC, TD3, DDPG and DQN, tanh for PPO, A2C and TRPO).
        vecnormalize: observation statistics of a `VecNormalize` wrapper: the `vecnormalize.pkl` that SB3 saves, of
            which nothing is executed (`sb3_moments.py`), or a .npz with `mean`, `var` and optionally `epsilon` and
            `clip_obs`. None: `vecnormalize.pkl` beside the zip or in the folder of its name, where SB3's zoo has it, or
            `<name of the zip>.vecnormalize.pkl`.
        seed: of the exploration noise when acting is not deterministic.

    Raises:
        ValueError: the file is no such agent, cannot be read as weights, or does not fit `io`; every difference is
            listed.
    """

    def __init__(
        self,
        path: str,
        io: IOSpec,
        *,
        device: str = "cpu",
        activation: str | None = None,
        vecnormalize: str | None = None,
        seed: int = 0,
    ) -> None:
        self.io, self.device = io, device
        weights, data = _read(Path(path))
        self._net = _network(weights, data, Path(path))
        self._activation = _activation(activation, data, self._net.family)
        self._bounds = _check(self._net, data, io, Path(path))
        statistics = sb3_moments.find(Path(path)) if vecnormalize is None else Path(vecnormalize)
        size = len((*self._net.layers, self._net.head)[0][0])
        self._moments = None if statistics is None else sb3_moments.load(statistics, size)
        self._rng = np.random.default_rng(seed)

    @property
    def parts(self) -> PolicyParts:
        """Noise that can be repeated, and the actor as a graph."""
        return PolicyParts(reseed=self.reseed, graph=self._graph)

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget."""

    def reseed(self, seed: int) -> None:
        """Begin the exploration noise anew."""
        self._rng = np.random.default_rng(seed)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Actions (B, A) in [-1, 1] for "state" (B, S); NumPy in, NumPy out, torch in, torch out.

        Sampled actions of a squashed Gaussian (SAC, TQC) come with their log-density (B,), choices with their
        log-probability; DQN always takes the best one.

        Raises:
            ValueError: noise is asked of an agent with state-dependent exploration.
        """
        state = obs["state"]
        if isinstance(state, Tensor):
            inner = self.act({"state": state.cpu().numpy()}, deterministic=deterministic)
            logp = None if inner.logp is None else torch.as_tensor(inner.logp, device=state.device)
            return Action(torch.as_tensor(inner.value, device=state.device), logp)
        h = np.asarray(state, np.float32)
        if self._moments is not None:
            mean, scale, limit = self._moments
            h = np.clip((h - mean) * scale, -limit, limit)
        for weight, bias in self._net.layers:
            h = _apply(np.dot(h, weight) + bias, self._activation)
        weight, bias = self._net.head
        raw = np.dot(h, weight) + bias
        if self._net.chooses:
            return self._choose(raw, deterministic)
        if self._net.clip_mean is not None:
            raw = np.clip(raw, -self._net.clip_mean, self._net.clip_mean)
        density: np.ndarray | None = None
        if not deterministic and self._net.log_std is not None:
            noise, log_std = self._noise(h, raw.shape)
            raw = raw + noise * np.exp(log_std)
            density = -0.5 * noise**2 - log_std - _HALF_LOG_TAU
        if self._net.squash:
            if density is None:
                return Action(np.tanh(raw))
            slope = 2.0 * (math.log(2.0) - raw - np.logaddexp(0.0, -2.0 * raw))  # log(1 - tanh^2)
            return Action(np.tanh(raw), (density - slope).sum(-1).astype(np.float32))
        if self._bounds is not None:
            low, high = self._bounds
            raw = 2.0 * (raw - low) / (high - low) - 1.0
        return Action(np.clip(raw, -1.0, 1.0).astype(np.float32))

    def _choose(self, raw: np.ndarray, deterministic: bool) -> Action:
        """Of preferences (B, sum of the choices) one for each action."""
        ends = np.cumsum(self.io.action_choices)[:-1]
        greedy, value, total = deterministic or self._net.family == "dqn", [], np.zeros(len(raw), np.float32)
        for part in np.split(raw, ends, axis=-1):
            choice = (part if greedy else part + self._rng.gumbel(size=part.shape)).argmax(-1)
            logp = part - np.logaddexp.reduce(part, -1, keepdims=True)
            total += logp[np.arange(len(part)), choice]
            value.append(action_of(choice.astype(np.float32), part.shape[-1]))
        return Action(np.stack(value, -1), None if greedy else total)

    def _graph(self, obs: Obs) -> Tensor:
        """(B, A) best actions, in torch: what can be written as a graph."""
        h = obs["state"]
        assert isinstance(h, Tensor)
        if self._moments is not None:
            mean, scale, limit = self._moments
            h = torch.clip((h - torch.as_tensor(mean)) * torch.as_tensor(scale), -limit, limit)
        hidden = {"tanh": torch.tanh, "relu": torch.relu, "elu": nn.functional.elu}[self._activation]
        for weight, bias in self._net.layers:
            h = hidden(h.float() @ torch.as_tensor(weight) + torch.as_tensor(bias))
        weight, bias = self._net.head
        raw = h.float() @ torch.as_tensor(weight) + torch.as_tensor(bias)
        if self._net.chooses:
            parts = raw.split(list(self.io.action_choices), -1)
            return torch.stack([action_of(part.argmax(-1).float(), part.shape[-1]) for part in parts], -1)
        if self._net.clip_mean is not None:
            raw = torch.clip(raw, -self._net.clip_mean, self._net.clip_mean)
        if self._net.squash:
            return torch.tanh(raw)
        if self._bounds is not None:
            low, high = map(torch.as_tensor, self._bounds)
            raw = 2.0 * (raw - low) / (high - low) - 1.0
        return torch.clip(raw, -1.0, 1.0)

    def _noise(self, latent: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Standard normal numbers and the log standard deviation that they are scaled by."""
        log_std: Any = self._net.log_std
        if isinstance(log_std, tuple):
            log_std = np.clip(np.dot(latent, log_std[0]) + log_std[1], *_LOG_STD_RANGE)
        elif log_std.ndim == 2:
            raise ValueError(
                "the agent explores by a state-dependent matrix (gSDE), which is not reproduced; "
                "act with deterministic=true"
            )
        return self._rng.standard_normal(shape).astype(np.float32), np.asarray(log_std, np.float32)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Tensors of policy.pth and the JSON of `data`, whose pickled members stay text."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if "policy.pth" not in names:
                raise ValueError(f"{path} holds {names}, expected 'policy.pth': is it a stable-baselines3 model?")
            raw = archive.read("policy.pth")
            data = json.loads(archive.read("data")) if "data" in names else {}
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}; give the path of one that model.save wrote") from None
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read as a stable-baselines3 zip ({error}); give the path of a file written by model.save"
        ) from error
    try:
        weights = torch.load(bytes_io.BytesIO(raw), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for damaged or unsafe files
        raise ValueError(
            f"policy.pth in {path} is not plain weights ({type(error).__name__}); nothing of it was executed. "
            "Save the agent again with a current stable-baselines3"
        ) from error
    return weights, data if isinstance(data, dict) else {}


def _network(weights: dict[str, Tensor], data: Mapping[str, object], path: Path) -> _Network:
    arrays = {key: value.detach().float().numpy() for key, value in weights.items() if isinstance(value, Tensor)}
    extractors = sorted(key for key in arrays if "features_extractor" in key and key.endswith("weight"))
    if extractors:
        raise ValueError(
            f"{path} has a trained feature extractor ({extractors[0]} ...), as for images or dictionaries; "
            "only agents on plain vectors can be loaded without executing their code"
        )
    layers = {key: value for key, value in arrays.items() if _LAYERS.match(key)}
    other = [key for key, x in layers.items() if (x.ndim != 2 if key.endswith("weight") else not key.endswith("bias"))]
    if other:
        raise ValueError(
            f"{path} has {other[0]} in its actor: other layers than plain ones, such as the normalisation of CrossQ, "
            "are not read"
        )
    if "actor.latent_pi.0.weight" in arrays or "actor.log_std.weight" in arrays:
        name = "actor.mu.0" if "actor.mu.0.weight" in arrays else "actor.mu"
        return _Network(
            "sac",
            _stack(arrays, "actor.latent_pi"),
            _linear(arrays, name),
            _linear(arrays, "actor.log_std") if "actor.log_std.weight" in arrays else arrays["actor.log_std"],
            squash=True,
            clip_mean=_GSDE_CLIP if name == "actor.mu.0" else None,
        )
    if "actor.mu.0.weight" in arrays:
        layers = _stack(arrays, "actor.mu")
        return _Network("td3", layers[:-1], layers[-1], None, squash=True, clip_mean=None)
    if "action_net.weight" in arrays and "log_std" in arrays:
        layers = _stack(arrays, "mlp_extractor.shared_net") + _stack(arrays, "mlp_extractor.policy_net")
        options = data.get("policy_kwargs")
        squash = isinstance(options, dict) and str(options.get("squash_output")) == "True"
        return _Network("ppo", layers, _linear(arrays, "action_net"), arrays["log_std"], squash, None)
    if "action_net.weight" in arrays:
        layers = _stack(arrays, "mlp_extractor.shared_net") + _stack(arrays, "mlp_extractor.policy_net")
        return _Network("ppo", layers, _linear(arrays, "action_net"), None, False, None, chooses=True)
    if "q_net.q_net.0.weight" in arrays:
        layers = _stack(arrays, "q_net.q_net")
        return _Network("dqn", layers[:-1], layers[-1], None, False, None, chooses=True)
    raise ValueError(
        f"{path} holds the tensors {sorted(arrays)[:8]} ..., expected an actor of SAC, TQC, TD3, DDPG, PPO, A2C, "
        "TRPO or DQN; other agents cannot be loaded"
    )


def _linear(arrays: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    return np.ascontiguousarray(arrays[f"{name}.weight"].T), arrays[f"{name}.bias"]


def _stack(arrays: dict[str, np.ndarray], prefix: str) -> list[tuple[np.ndarray, np.ndarray]]:
    pattern = re.compile(re.escape(prefix) + r"\.(\d+)\.weight")
    found = sorted(int(match.group(1)) for key in arrays if (match := pattern.fullmatch(key)))
    return [_linear(arrays, f"{prefix}.{i}") for i in found]


def _activation(given: str | None, data: Mapping[str, object], family: str) -> str:
    if given is not None:
        if given not in ACTIVATIONS:
            raise ValueError(f"activation is {given!r}, expected one of {ACTIVATIONS}")
        return given
    options = data.get("policy_kwargs")
    text = str(options.get("activation_fn", "")) if isinstance(options, dict) else ""
    if not text:
        return "tanh" if family == "ppo" else "relu"
    name = re.sub(r"\W+$", "", text).split(".")[-1].lower()
    if name not in ACTIVATIONS:
        raise ValueError(f"the agent's activation is {text}, expected one of {ACTIVATIONS}; it cannot be loaded")
    return name


def _bound(space: Any, key: str, dim: int) -> np.ndarray | None:
    """Bounds from the text that SB3 writes beside each pickled space, or None where it is cut short."""
    numbers = re.findall(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf)", str(space.get(key, ""))) if space else []
    return np.array([float(x) for x in numbers], np.float32) if len(numbers) == dim else None


def _check(net: _Network, data: Mapping[str, object], io: IOSpec, path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Compare with `io`; the agent's own action bounds where its output has to be scaled by them."""
    layers = [*net.layers, net.head]
    size, dim = len(layers[0][0]), len(net.head[1])
    lines = []
    if "state" not in io.obs:
        lines.append(f"observation 'state' is missing here; there is {sorted(io.obs)}")
    elif io.obs["state"][0] != (size,):
        lines.append(f"observation 'state' has {size} components in the file and {io.obs['state'][0]} here")
    space = data.get("action_space")
    space = space if isinstance(space, dict) else None
    if net.chooses:
        if "MultiBinary" in str((space or {}).get(":type:")):
            lines.append("each action of the agent in the file is on or off (MultiBinary), which is not read")
        if dim != sum(io.action_choices):
            here = list(io.action_choices) or "any number"
            lines.append(f"the agent in the file chooses among {dim}, the choices here are {here}")
    elif io.action_choices:
        lines.append(
            f"the agent in the file gives numbers, and the actions here are choices: {list(io.action_choices)}"
        )
    elif dim != io.action_dim:
        lines.append(f"action has {dim} dimensions in the file and {io.action_dim} here")
    if net.chooses or io.action_choices:
        _refuse(lines, path)
        return None
    low, high = _bound(space, "low", dim), _bound(space, "high", dim)
    if low is None or high is None:
        low, high = (np.array(ends, np.float32) for ends in io.bounds)
    normalised = bool(np.all(low == -1.0) and np.all(high == 1.0))
    if dim == io.action_dim and not normalised:
        same = np.allclose((low, high), io.bounds, rtol=1e-4)
        if not same:
            lines.append(
                f"action spans {low.tolist()} to {high.tolist()} in the file and {list(io.action_low)} to "
                f"{list(io.action_high)} here"
            )
    _refuse(lines, path)
    return None if normalised or net.squash else (low, high)


def _refuse(lines: list[str], path: Path) -> None:
    if lines:
        raise ValueError(f"the agent in {path} does not fit this environment:\n  - " + "\n  - ".join(lines))


def _apply(x: np.ndarray, activation: str) -> np.ndarray:
    if activation == "tanh":
        return np.tanh(x)
    return np.maximum(x, 0.0) if activation == "relu" else np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))
