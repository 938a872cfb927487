"""Distance to a reference policy: estimators, and what to log.

d = logp - logp_ref of the sampled action. k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. As a reward only k1 is unbiased.
As a loss, the gradient of k2 is that of the reverse divergence on the policy's own data, k1 has an expected gradient
of 0 and k3 a biased one; "k3+" reports k3 and follows the gradient of k2.
"""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import Array, require_option
from robot_rl.advantage.ratios import LOG_CLAMP, log_ratio

ESTIMATORS = ("k1", "k2", "k3", "k3+")


K3_MAX = 10.0


@in_torch
def kl_rows(
    logp: Array,
    ref_logp: Array,
    kind: str = "k3",
    *,
    mask: Array | None = None,
    clamp: float = LOG_CLAMP,
    k3_max: float | None = K3_MAX,
) -> Array:
    """Per-row estimate of KL(policy || reference).

    Args:
        logp: (...) log-probability under the policy.
        ref_logp: (...) under the reference.
        kind: "k1", "k2", "k3", or "k3+" (value of k3, gradient of k2).
        mask: (...) rows of the loss, default all; the others give 0.
        clamp: largest |d|.
        k3_max: largest k3, as in verl; None for no limit. `kl_metrics` reports how often it is hit.

    Returns:
        (...) estimates.

    Raises:
        ValueError: unknown kind or shapes differ.

    Source: Schulman, Approximating KL divergence; gradients as analysed by Liu et al. 2025.
    """
    require_option("kind", kind, ESTIMATORS)
    d = log_ratio(logp, ref_logp, mask=mask, clamp=clamp)
    if kind == "k1":
        return d
    k2 = 0.5 * d * d
    if kind == "k2":
        return k2
    k3 = torch.exp(-d) - 1.0 + d
    if k3_max is not None:
        k3 = torch.clip(k3, None, k3_max)
    return k3 if kind == "k3" else k2 + (k3 - k2).detach()


@in_torch
def kl_metrics(
    logp: Array, ref_logp: Array, *, mask: Array | None = None, clamp: float = LOG_CLAMP
) -> dict[str, Array]:
    """Mean k1, k2, k3 over the masked rows and the share of rows at a clamp.

    Args:
        logp: (...) log-probability under the policy.
        ref_logp: (...) under the other policy.
        mask: (...) rows to use, default all.
        clamp: see `kl_rows`.

    Returns:
        0-d arrays `k1`, `k2`, `k3`, `clamped_fraction`.

    Raises:
        ValueError: shapes differ.
    """
    logp, ref_logp = logp.detach(), ref_logp.detach()
    use = torch.ones_like(logp, dtype=torch.bool) if mask is None else mask.bool()
    count = use.double().sum()
    count = torch.where(count > 0, count, torch.ones_like(count))
    d = log_ratio(logp, ref_logp, mask=use, clamp=clamp).double()
    k3 = torch.exp(-d) - 1.0 + d
    hit = use & ((torch.abs(d) >= clamp) | (k3 >= K3_MAX))
    return {
        "k1": d.sum() / count,
        "k2": (0.5 * d * d).sum() / count,
        "k3": torch.clip(k3, None, K3_MAX).sum() / count,
        "clamped_fraction": hit.double().sum() / count,
    }
