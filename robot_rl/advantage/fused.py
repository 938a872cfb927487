"""Policy loss, value loss and entropy with their gradients, from what a network puts out, in one pass.

Between a network's outputs and the loss of PPO lie some forty operations on a few hundred numbers; autograd spends more
on its bookkeeping than on them. `fused_policy_loss` writes value and gradients down at once, and the caller hands the
gradients to the network: `torch.autograd.backward([outputs[k] for k in gradients], list(gradients.values()))`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from robot_rl.advantage.arrays import to_arrays, to_tensors
from robot_rl.advantage.backends import backend
from robot_rl.advantage.kinds import Array, floating, readable
from robot_rl.advantage.losses import Clip, clip_bounds
from robot_rl.advantage.ratios import LOG_CLAMP

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class FusedOptions:
    """Coefficients of `fused_policy_loss`.

    Attributes:
        clip: width of the ratio's clip, or (low, high).
        dual_clip: c > 1; for a negative advantage the loss is at most c |A|. None = no bound.
        value_clip: the value may move this far from its old estimate; None = without limit.
        value_coef: weight of the squared value error (without a factor of one half).
        entropy_coef: weight of the entropy bonus, for outputs that are a Gaussian.
        log_std_range: log standard deviations are clipped to it, and have no gradient outside.
    """

    clip: Clip = 0.2
    dual_clip: float | None = None
    value_clip: float | None = None
    value_coef: float = 0.5
    entropy_coef: float = 0.0
    log_std_range: tuple[float, float] = (-5.0, 2.0)

    def __post_init__(self) -> None:
        clip_bounds(self.clip)
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip is {self.dual_clip}, expected a bound above 1")
        if self.value_clip is not None and self.value_clip < 0:
            raise ValueError(f"value_clip is {self.value_clip}, expected a width >= 0, or None for no clip")


class FusedLoss(NamedTuple):
    """What `fused_policy_loss` found.

    Attributes:
        loss: its value.
        gradients: d loss / d output under the name of each output, in its shape and dtype.
        log_ratio: of each row, in the shape of the batch's logp, clamped to [-20, 20]; 0 where masked.
    """

    loss: float | torch.Tensor
    gradients: dict[str, Array]
    log_ratio: Array


PLAIN = FusedOptions()
LossRows = tuple[Array, tuple[Array, ...], Array]
"""Loss, gradients in the order of what was given, and the log-ratio of each row."""


def fused_policy_loss(
    outputs: Mapping[str, Array], batch: Mapping[str, Array], options: FusedOptions = PLAIN
) -> FusedLoss:
    """PPO's loss of a minibatch and its gradients with respect to what the network put out.

    loss = policy_loss(logp, ...) + value_coef mean((V - target)^2) - entropy_coef mean(entropy), means over the rows of
    the mask; with a value clip the larger of the two squared errors counts.

    Args:
        outputs: of a Gaussian policy "mean" (B, A) and "log_std" (B, A), or (A,) for all rows; of a language model
            "logp" (N,) or (B, T) of the tokens; of either, where there is a critic, "value", one per row.
        batch: "logp" of the policy that acted and "advantage", one per row; "action" (B, A) of a Gaussian, before any
            clipping; "target" beside a value, and its old "value" for the value clip; "mask" of the rows that count, or
            left out for all. Masked rows may hold NaN.
        options: coefficients.

    Returns:
        Loss, gradients and log-ratios. CPU tensors and arrays are read in place and served by numba where it is
        installed; tensors on a device stay there, and so does the loss, as do those of the CPU with the torch backend.

    Raises:
        ValueError: an output or column is missing or has another shape, naming it; or an entropy bonus for tokens,
            whose entropy log-probabilities do not tell.

    Source: Schulman et al., Proximal Policy Optimization Algorithms, equations 7 and 9; Ye et al., dual-clip PPO.
    """
    tokens, critic = "logp" in outputs, "value" in outputs
    names = ("logp",) if tokens else ("mean", "log_std")
    for name in names:
        if name not in outputs:
            raise ValueError(f"outputs has {', '.join(outputs)}, expected logp, or mean and log_std; {name} is missing")
    if tokens and options.entropy_coef:
        raise ValueError("entropy_coef needs the entropy of a Gaussian; add that of the tokens outside, and set 0 here")
    lead = outputs[names[0]]
    wide = tuple(lead.shape)
    if not tokens and len(wide) != 2:
        raise ValueError(f"mean has shape {wide}, expected (B, A): one row per decision")
    shape = wide if tokens else wide[:1]
    tensors = isinstance(lead, torch.Tensor)
    host = (not tensors or readable(lead)) and backend("cpu") == "numba"
    if not tensors and not host:
        found = fused_policy_loss(to_tensors(outputs), to_tensors(batch), options)
        return to_arrays(found._replace(loss=float(found.loss)))
    like = floating(lead.detach()) if tensors else lead.astype(np.result_type(lead, np.float32), copy=False)
    read = _view if host else _flat
    nothing = _nothing(like.dtype) if host else like.new_empty(0)

    def column(name: str, size: tuple[int, ...] = shape) -> Array:
        if name not in batch:
            raise ValueError(f"batch has {', '.join(batch)}, expected {name} too")
        return read(batch[name], name, size, like)

    value = read(outputs["value"], "value", shape, like) if critic else nothing
    rows = (
        column("logp"),
        column("advantage"),
        _mask(batch.get("mask"), shape, like, host),
        column("target") if critic else nothing,
        column("value") if critic and options.value_clip is not None else value,
    )
    first = read(lead, names[0], wide, like)
    given: tuple[Array, ...] = (first, value)
    if not tokens:
        log_std = outputs["log_std"]
        spread = read(log_std, "log_std", wide if log_std.ndim == 2 else wide[1:], like)
        given = (first.reshape(wide), spread.reshape(-1, wide[1]), value)
        rows = (column("action", wide).reshape(wide), *rows)
    loss, found, log_ratio = _run(given, rows, options, tokens, host)
    every = (*names, "value") if critic else names
    gradients = {name: _reshape(x, outputs[name].shape) for name, x in zip(every, found)}
    log_ratio = _reshape(log_ratio, shape)
    if not tensors:
        return FusedLoss(loss, {k: x.astype(outputs[k].dtype, copy=False) for k, x in gradients.items()}, log_ratio)
    if host:
        gradients, log_ratio = {k: torch.from_numpy(x) for k, x in gradients.items()}, torch.from_numpy(log_ratio)
    gradients = {k: x.to(outputs[k].dtype) for k, x in gradients.items()}
    return FusedLoss(loss, gradients, log_ratio)


def _run(
    given: tuple[Array, ...], rows: tuple[Array, ...], options: FusedOptions, tokens: bool, host: bool
) -> LossRows:
    if not host:
        return (token_rows if tokens else gaussian_rows)(given, rows, options)
    from robot_rl.advantage.backends import numba_loss

    found = tuple(np.empty_like(x) for x in given)
    log_ratio = np.empty_like(rows[-5])
    kernel: Any = numba_loss.token_rows if tokens else numba_loss.gaussian_rows
    return kernel(given, rows, _numbers(options, given[0].dtype.char), found, log_ratio), found, log_ratio


@lru_cache(maxsize=8)
def _nothing(dtype: torch.dtype | np.dtype) -> np.ndarray:
    return np.empty(0, _NUMPY[dtype] if isinstance(dtype, torch.dtype) else dtype)


def _reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return x if x.shape == shape else x.reshape(tuple(shape))


@lru_cache(maxsize=64)
def _numbers(options: FusedOptions, dtype: str) -> np.ndarray:
    """(14,) what the compiled kernels compute with, in the dtype of the rows; -1 stands for None."""
    low, high = clip_bounds(options.clip)
    either = [-1.0 if x is None else x for x in (options.dual_clip, options.value_clip)]
    coefficients = (options.value_coef, options.entropy_coef, *options.log_std_range)
    constants = (1.0, 0.5, _HALF_LOG_2PI, 2.0)
    return np.array([1 - low, 1 + high, either[0], LOG_CLAMP, 0.0, either[1], *coefficients, *constants], dtype)


def gaussian_rows(given: tuple[Array, ...], rows: tuple[Array, ...], options: FusedOptions) -> LossRows:
    """The pass over a Gaussian's outputs, in torch.

    Args:
        given: mean (B, A), log_std (B, A) or (1, A), value (B,) or (0,).
        rows: action (B, A), logp, advantage, mask (B,) or (0,) for all, target, old value.
        options: coefficients.

    Returns:
        (loss, gradients in the order of `given`, log-ratio).
    """
    (mean, raw, value), (action, old, advantage, mask, target, old_value) = given, rows
    dims = mean.shape[1]
    use, share = _share(mask, old)
    each = raw.shape[0] == mean.shape[0]  # a log_std of its own for every row; with one row both are the same
    raw = torch.where(use[:, None], raw, 0.0) if each else raw
    low, high = options.log_std_range
    log_std = torch.clip(raw, low, high)
    inverse = torch.exp(-log_std)
    z = (action - mean) * inverse
    spread = log_std.sum(1) + dims * _HALF_LOG_2PI  # (B,) or (1,): minus the log density at the mean
    gap = -0.5 * (z * z).sum(1) - spread - old
    log_ratio, loss, slope = _policy(gap, advantage, use, options)
    entropy = torch.broadcast_to(spread + 0.5 * dims, tuple(old.shape))
    total = (loss - options.entropy_coef * torch.where(use, entropy, 0.0)).sum()
    slope = slope * share
    z = torch.where(use[:, None], z, 0.0)
    d_mean = slope[:, None] * z * inverse
    bend = slope[:, None] * (z * z - 1.0) - options.entropy_coef * share * use[:, None]
    inside = (raw >= low) & (raw <= high)
    d_log_std = torch.where(inside, bend if each else bend.sum(0)[None], 0.0)
    square, d_value = _value(value, target, old_value, use, share, options)
    return (total + square) * share, (d_mean, d_log_std, d_value), log_ratio


def token_rows(given: tuple[Array, ...], rows: tuple[Array, ...], options: FusedOptions) -> LossRows:
    """The pass over log-probabilities: `given` logp (N,) and value (N,) or (0,); else as `gaussian_rows`."""
    (logp, value), (old, advantage, mask, target, old_value) = given, rows
    use, share = _share(mask, old)
    log_ratio, loss, slope = _policy(logp - old, advantage, use, options)
    square, d_value = _value(value, target, old_value, use, share, options)
    return (loss.sum() + square) * share, (slope * share, d_value), log_ratio


def _share(mask: Array, like: Array) -> tuple[Array, Array]:
    """((N,) bool rows that count, weight of each in a mean)."""
    use = mask if len(mask) else torch.ones_like(like, dtype=torch.bool)
    return use, 1.0 / torch.clip(torch.sum(use, dtype=like.dtype), 1.0, None)


def _policy(gap: Array, advantage: Array, use: Array, options: FusedOptions) -> tuple[Array, Array, Array]:
    low, high = clip_bounds(options.clip)
    gap, advantage = torch.where(use, gap, 0.0), torch.where(use, advantage, 0.0)
    log_ratio = torch.clip(gap, -LOG_CLAMP, LOG_CLAMP)
    ratio = torch.exp(log_ratio)
    gain = ratio * advantage
    bounded = torch.clip(ratio, 1 - low, 1 + high) * advantage
    loss, flat = -torch.minimum(gain, bounded), (bounded < gain) | (log_ratio != gap)
    if options.dual_clip is not None:
        worst = -options.dual_clip * advantage
        over = (advantage < 0) & (loss > worst)
        loss, flat = torch.where(over, worst, loss), flat | over
    return log_ratio, loss, torch.where(flat, 0.0, -gain)


def _value(
    value: Array, target: Array, old: Array, use: Array, share: Array, options: FusedOptions
) -> tuple[Array, Array]:
    """(value_coef times the sum of squared errors, gradient of its mean)."""
    if not len(value):
        return 0.0, value
    error = torch.where(use, value - target, 0.0)
    square, bend = error * error, error
    if options.value_clip is not None:
        moved = torch.where(use, value - old, 0.0)
        near = torch.where(use, old + torch.clip(moved, -options.value_clip, options.value_clip) - target, 0.0)
        beyond = near * near > square
        square = torch.where(beyond, near * near, square)
        bend = torch.where(beyond & (torch.abs(moved) > options.value_clip), 0.0, bend)
    return options.value_coef * square.sum(), 2.0 * options.value_coef * share * bend


def _check(x: Array, name: str, shape: tuple[int, ...]) -> None:
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {shape}: the rows of the network's outputs")


def _view(x: Array, name: str, shape: tuple[int, ...], like: Array) -> np.ndarray:
    """A flat C-ordered NumPy array of the dtype of `like`, over the same memory where that is possible."""
    if x.shape != shape:  # `torch.Size` is a tuple
        raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {shape}: the rows of the network's outputs")
    kind = like.dtype
    if isinstance(x, torch.Tensor):
        if x.dtype is not kind:
            x, kind = floating(x), _NUMPY.get(kind, kind)
        else:
            kind = None
        x = x.numpy() if not x.requires_grad else x.detach().numpy()
    elif isinstance(kind, torch.dtype):
        kind = _NUMPY[kind]
    x = x if kind is None else np.asarray(x, kind)
    return x if x.ndim == 1 and x.flags.c_contiguous else x.ravel()


_NUMPY = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}


def _flat(x: torch.Tensor, name: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    _check(x, name, shape)
    return x.detach().to(like).reshape(-1)


def _mask(mask: Array, shape: tuple[int, ...], like: Array, host: bool) -> Array:
    if mask is None:
        return np.empty(0, np.bool_) if host else torch.empty(0, dtype=torch.bool, device=like.device)
    _check(mask, "mask", shape)
    return np.ascontiguousarray(mask, np.bool_).reshape(-1) if host else mask.bool().reshape(-1)
