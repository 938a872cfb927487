"""Keep a policy from collapsing or from drifting into noise: bonus, covariance clipping, AEPO and EPO."""

from __future__ import annotations

import math

import numpy as np
import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    floating,
    match_dtype,
)
from robot_rl.advantage.layout import row_mask
from robot_rl.advantage.normalise import RESIDUE, batch_moments


@in_torch
def covariance(advantage: Array, logp: Array, *, mask: Array | None = None) -> Array:
    """(advantage - its mean) · (logp - its mean) per row, means over the masked rows; without gradient.

    Args:
        advantage: (...) advantages.
        logp: (...) log-probabilities.
        mask: (...) rows of the loss, default all; the others give 0.

    Returns:
        (...) float64.

    Raises:
        ValueError: shapes differ.

    Source: Cui et al., The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models.
    """
    advantage = advantage.detach()
    logp = logp.detach()
    use = row_mask(mask, advantage).reshape(advantage.shape)
    a = advantage.double() - batch_moments(advantage, use).mean
    b = logp.double() - batch_moments(logp, use).mean
    return torch.where(use, a * b, 0.0)


def _uniform(n: int, like: Array, generator: np.random.Generator | torch.Generator) -> Array:
    if isinstance(generator, torch.Generator):
        return torch.rand(n, generator=generator, device=like.device, dtype=torch.float64)
    return torch.from_numpy(generator.random(n)).to(like.device)


def _lowest(key: Array, candidate: Array, count: Array) -> Array:
    """The `count` (0-d) candidates with the smallest keys, as a mask; nothing waits for the device."""
    n = int(key.shape[0])
    order = torch.argsort(torch.where(candidate, key, float("inf")), stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(n, device=key.device)
    return candidate & (rank < count)


def _share(use: Array, fraction: float) -> Array:
    """floor(fraction · rows), at least 1."""
    count = (use.double().sum() * fraction).long()
    return torch.maximum(count, torch.ones_like(count))


@in_torch
def clip_cov(
    advantage: Array,
    logp: Array,
    *,
    generator: np.random.Generator | torch.Generator,
    mask: Array | None = None,
    fraction: float = 2e-4,
    bounds: tuple[float, float] = (1.0, 5.0),
) -> Array:
    """Randomly chosen rows of high covariance whose loss is to be detached.

    Args:
        advantage: (...) advantages.
        logp: (...) log-probabilities.
        generator: the batch's seeded generator; a NumPy generator serves both kinds of array.
        mask: (...) rows of the loss, default all.
        fraction: share of the masked rows to choose, at least one row if any lies in the band.
        bounds: lowest and highest covariance of a candidate. SPEAR's replay uses fraction 0.002 and (1, 40).

    Returns:
        (...) bool, true = drop the gradient of this row (it stays in the denominator).

    Raises:
        ValueError: shapes differ or the fraction is outside [0, 1].

    Source: Cui et al., Clip-Cov.
    """
    _require_fraction(fraction)
    cov = covariance(advantage, logp, mask=mask)
    use = row_mask(mask, cov)
    flat = cov.reshape(-1)
    candidate = use & (flat >= bounds[0]) & (flat <= bounds[1])
    chosen = _lowest(_uniform(int(flat.shape[0]), flat, generator), candidate, _share(use, fraction))
    return chosen.reshape(cov.shape)


@in_torch
def kl_cov(advantage: Array, logp: Array, *, mask: Array | None = None, fraction: float = 2e-4) -> Array:
    """Rows with the largest covariance, which get an extra penalty beta · |log-ratio|.

    Args:
        advantage: (...) advantages.
        logp: (...) log-probabilities.
        mask: (...) rows of the loss, default all.
        fraction: share of the masked rows, at least one row.

    Returns:
        (...) bool.

    Raises:
        ValueError: shapes differ or the fraction is outside [0, 1].

    Source: Cui et al., KL-Cov.
    """
    _require_fraction(fraction)
    cov = covariance(advantage, logp, mask=mask)
    use = row_mask(mask, cov)
    return _lowest(-cov.reshape(-1), use, _share(use, fraction)).reshape(cov.shape)


def _require_fraction(fraction: float) -> None:
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction is {fraction}, expected a share of the rows in [0, 1]")


@in_torch
def aepo_factor(entropy: Array, *, mask: Array | None = None, weight: float = 0.2, ddof: int = 1) -> Array:
    """1 + weight · z-score of the entropy over the masked rows; multiplies the advantage, without gradient.

    Args:
        entropy: (...) policy entropy.
        mask: (...) rows of the loss, default all; the others give 1.
        weight: strength.
        ddof: 1 or 0.

    Returns:
        (...) factors; 1 everywhere if the entropy has no spread.

    Raises:
        ValueError: shapes differ.

    Source: AEPO, entropy-aware advantage (a port of the ARPO family).
    """
    entropy = entropy.detach()
    use = row_mask(mask, entropy).reshape(entropy.shape)
    count, mean, square = batch_moments(entropy, use)
    divisor = torch.where(count > ddof, count - ddof, torch.ones_like(count))
    std = torch.sqrt(square / divisor)
    flat = (std <= RESIDUE) | (count < 2)
    z = (entropy.double() - mean) / torch.where(flat, torch.ones_like(std), std)
    return match_dtype(torch.where(use & ~flat, 1.0 + weight * z, 1.0), entropy)


@in_torch
def epo_penalty_rows(
    entropy: Array,
    history: Array,
    *,
    coefficient: float = 0.05,
    band: tuple[float, float] = (0.8, 1.2),
    mask: Array | None = None,
) -> Array:
    """Hinge that pulls the entropy of a row back into a band around the mean of past iterations.

    Args:
        entropy: (...) policy entropy, with gradient.
        history: (...) mean entropy of past iterations for the row's turn index (`state.EntropyHistory`); NaN = none
            yet, no penalty.
        coefficient: 0.05 or 0.1.
        band: multiples of the history; the release's scripts use (0, 2).
        mask: (...) rows of the loss, default all.

    Returns:
        (...) row losses coefficient · (max(0, low - H) + max(0, H - high)).

    Raises:
        ValueError: shapes differ.

    Source: EPO, Entropy-regularized Policy Optimization; the released penalty has no gradient, this one does.
    """
    entropy = floating(entropy)
    history = history.detach()
    if tuple(history.shape) != tuple(entropy.shape):
        raise ValueError(f"history has shape {tuple(history.shape)}, expected that of entropy, {tuple(entropy.shape)}")
    use = ~torch.isnan(history)
    if mask is not None:
        use = use & mask.bool()
    past = torch.where(use, history, 0.0)
    now = torch.where(use, entropy, 0.0)
    below, above = band[0] * past - now, now - band[1] * past
    hinge = torch.where(below > 0, below, 0.0) + torch.where(above > 0, above, 0.0)
    return torch.where(use, coefficient * hinge, 0.0)


@in_torch
def epo_release_penalty(
    entropy: Array, history: Array, *, band: tuple[float, float] = (0.8, 1.2), mask: Array | None = None
) -> Array:
    """Share of the masked rows outside the band: the released penalty is such a constant, so it is a metric here.

    Args:
        entropy: (...) policy entropy.
        history: (...) see `epo_penalty_rows`.
        band: multiples of the history.
        mask: (...) rows of the loss, default all.

    Returns:
        0-d float64 without gradient.

    Raises:
        ValueError: shapes differ.

    Source: WujiangXu/EPO.
    """
    entropy = entropy.detach()
    outside = epo_penalty_rows(entropy, history, coefficient=1.0, band=band, mask=mask) > 0
    use = row_mask(mask, entropy).double().sum()
    return outside.double().sum() / torch.maximum(use, torch.ones_like(use))


def epo_weight(epoch: float, *, epochs: int = 150) -> float:
    """Schedule of the penalty: falls slowly in the first half of training and fast in the second.

    Args:
        epoch: epochs done, 0 .. epochs.
        epochs: length of the schedule M.

    Returns:
        1 - 0.2·(1 - exp(-2p)) for epoch <= M/2, p = epoch / (M/2); then 0.8·exp(-3p), p = (epoch - M/2) / (M/2).

    Raises:
        ValueError: epochs is not positive.

    Source: WujiangXu/EPO.
    """
    if epochs < 1:
        raise ValueError(f"epochs is {epochs}, expected a positive length of the schedule")
    half = epochs / 2
    if epoch <= half:
        return 1.0 - 0.2 * (1.0 - math.exp(-2.0 * epoch / half))
    return 0.8 * math.exp(-3.0 * (epoch - half) / (epochs - half))
