"""The tanh-squashed Gaussian in closed form: samples with their log-density, which losses may differentiate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

LOG_STD_MIN = -20.0
LOG_STD_MAX = 2.0
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def normal_logp(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of a Gaussian with independent components.

    Args:
        x: (..., A).
        mean: (..., A).
        log_std: (..., A), broadcast over rows.

    Returns:
        (...).
    """
    square = ((x - mean).square() * (-0.5 * (-2.0 * log_std).exp())).sum(-1)
    return square - (log_std.sum(-1) + x.shape[-1] * _HALF_LOG_TAU)


@dataclass(frozen=True)
class SquashedSample:
    """One reparameterised sample a = tanh(mean + std * noise) with what its gradient needs.

    Attributes:
        action: (B, A) in (-1, 1).
        logp: (B,) log-density of `action`.
        noise: (B, A) standard normal.
        std: (B, A).
        free: (B, A) 1 where log-std is inside its limits, else 0: clamped entries get no gradient.
    """

    action: Tensor
    logp: Tensor
    noise: Tensor
    std: Tensor
    free: Tensor


def squash(raw: Tensor, noise: Tensor, *, log_std_min: float = LOG_STD_MIN) -> SquashedSample:
    """Sample from the squashed Gaussian that a network describes.

    log(1 - tanh(u)^2) is written as 2 (log 2 - u - softplus(-2u)), which stays exact where tanh saturates.

    Args:
        raw: (B, 2A) mean and log-std, the latter clamped to [-20, 2].
        noise: (B, A) standard normal; further leading dimensions give several samples per row.
        log_std_min: lower limit of the log-std.

    Source: Haarnoja et al., Soft Actor-Critic Algorithms and Applications, appendix C (enforcing action bounds).
    """
    size = noise.shape[-1]
    mean, wide = raw[..., :size], raw[..., size:]
    log_std = wide.clamp(log_std_min, LOG_STD_MAX)
    std = log_std.exp()
    u = torch.addcmul(mean, std, noise)
    action = u.tanh()
    # logN(u) - log(1 - a^2) = -noise^2/2 - log_std - log(2 pi)/2 - 2 log 2 + 2u + 2 softplus(-2u)
    density = softplus(u.mul_(-2.0)).mul_(2.0).sub_(u)
    density.addcmul_(noise, noise, value=-0.5).sub_(log_std)
    logp = density.sum(-1).sub_(size * (_HALF_LOG_TAU + 2 * math.log(2.0)))
    return SquashedSample(action, logp, noise, std, (log_std == wide).to(raw.dtype))


def squash_grad(sample: SquashedSample, d_action: Tensor, d_logp: Tensor | float) -> Tensor:
    """Gradient of a loss by the network's output, through action and log-density.

    With u the unsquashed sample: da/du = 1 - a^2 and dlogp/du = 2a (the Gaussian part cancels, since the noise is
    fixed), dlogp/dlog_std = -1 besides the way through u.

    Args:
        sample: from `squash`.
        d_action: (B, A) gradient of the loss by the action.
        d_logp: (B, 1) gradient of the loss by the log-density, or one number for all rows.

    Returns:
        (B, 2A) gradient by `raw`.
    """
    action = sample.action
    d_u = torch.addcmul(d_action, d_action * action, action, value=-1.0)
    d_u.add_(action * (2.0 * d_logp))
    d_log_std = (d_u * sample.std).mul_(sample.noise).sub_(d_logp).mul_(sample.free)
    return torch.cat([d_u, d_log_std], dim=-1)


class _Squash(torch.autograd.Function):
    """`squash` as one node of autograd's graph, with `squash_grad` behind it."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, noise: Tensor, log_std_min: float) -> tuple[Tensor, Tensor]:
        found = squash(raw, noise, log_std_min=log_std_min)
        ctx.save_for_backward(found.action, noise, found.std, found.free)
        ctx.shape = raw.shape
        ctx.set_materialize_grads(False)
        return found.action, found.logp

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("a second derivative through a squashed sample is not written out")
        d_action, d_logp = grad_outputs
        action, noise, std, free = ctx.saved_tensors
        sample = SquashedSample(action, action, noise, std, free)  # the log-density itself is not needed
        d_action = torch.zeros_like(action) if d_action is None else d_action
        d_raw = squash_grad(sample, d_action, 0.0 if d_logp is None else d_logp[..., None])
        return d_raw.sum_to_size(ctx.shape), None, None


def squashed_sample(raw: Tensor, noise: Tensor, *, log_std_min: float = LOG_STD_MIN) -> tuple[Tensor, Tensor]:
    """Reparameterised sample tanh(mean + std noise) and its log-density, both differentiable by `raw`.

    Args:
        raw: (..., B, 2A) mean and log-std, the latter clamped to [log_std_min, 2]; clamped entries get no gradient.
        noise: (..., B, A) standard normal; further leading dimensions give several samples per row.
        log_std_min: lower limit of the log-std.

    Returns:
        (..., B, A) in (-1, 1) and (..., B).

    Source: Haarnoja et al., Soft Actor-Critic Algorithms and Applications, appendix C (enforcing action bounds).
    """
    if torch.is_grad_enabled() and raw.requires_grad:
        return _Squash.apply(raw, noise, log_std_min)
    found = squash(raw, noise, log_std_min=log_std_min)
    return found.action, found.logp
