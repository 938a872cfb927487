"""Divergences as rewards and losses, and distillation, that no learner uses yet."""

from __future__ import annotations

from typing import Any

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import Array, match_dtype, require_option
from robot_rl.advantage.kl import ESTIMATORS, kl_rows
from robot_rl.advantage.ratios import log_ratio


@in_torch
def kl_reward(
    reward: Array, logp: Array, ref_logp: Array | None, beta: float, *, kind: str = "k1", mask: Array | None = None
) -> Array:
    """Reward minus beta · (logp - ref_logp) on the masked rows, without gradient.

    Args:
        reward: (...) rewards.
        logp: (...) log-probability of the behaviour or proximal policy.
        ref_logp: (...) of the reference; may be None when beta is 0, the reference pass is then not needed.
        beta: weight.
        kind: only "k1".
        mask: (...) rows that the policy wrote, default all.

    Returns:
        (...) new rewards.

    Raises:
        ValueError: another kind (k2 and k3 are biased as a reward), shapes differ, or no reference although beta > 0.
    """
    if kind != "k1":
        raise ValueError(f"kind is {kind!r}: k2 and k3 are biased as a reward; use k1 here, or k2 as a loss")
    if beta == 0:
        return reward
    d = kl_rows(logp.detach(), _require_reference(ref_logp, beta).detach(), "k1", mask=mask)
    return match_dtype(reward.double() - beta * d.double(), reward)


@in_torch
def kl_loss_rows(
    logp: Array,
    ref_logp: Array | None,
    beta: float,
    *,
    kind: str = "k2",
    mask: Array | None = None,
    ratio: Array | None = None,
    **options: Any,
) -> Array:
    """beta · KL estimate per row, to be aggregated like the policy loss.

    Args:
        logp: (...) current log-probability.
        ref_logp: (...) of the reference; may be None when beta is 0.
        beta: weight; 0 gives zeros without touching the reference.
        kind: see `kl_rows`.
        mask: (...) rows of the loss, default all.
        ratio: (...) current over behaviour ratio; multiplies the rows without gradient, which corrects data that are
            not the policy's own.
        **options: `clamp` and `k3_max` of `kl_rows`.

    Returns:
        (...) row losses.

    Raises:
        ValueError: unknown kind, shapes differ, or no reference although beta > 0.
    """
    require_option("kind", kind, ESTIMATORS)
    if beta == 0:
        return torch.zeros_like(logp)
    rows = beta * kl_rows(logp, _require_reference(ref_logp, beta), kind, mask=mask, **options)
    return rows if ratio is None else rows * ratio.detach()


def _require_reference(ref_logp: Array | None, beta: float) -> Array:
    if ref_logp is None:
        raise ValueError(f"ref_logp is None with beta {beta}; run the reference policy or set beta to 0")
    return ref_logp


@in_torch
def experimental_opd_advantage(logp: Array, teacher_logp: Array, *, mask: Array | None = None) -> Array:
    """On-policy distillation advantage: -(logp - teacher_logp), without gradient; reconstructed from abstracts.

    Args:
        logp: (...) current or behaviour log-probability of the student's own action.
        teacher_logp: (...) of the teacher.
        mask: (...) rows of the loss, default all.

    Returns:
        (...) advantages for a policy-gradient loss; multiply by a clipped ratio for data that are not its own.

    Raises:
        ValueError: shapes differ.

    Source: TT-OPD and Skill-SD (abstracts; reconstruction).
    """
    logp = logp.detach()
    # 0 - d, so that equal log-probabilities give 0.0 and not -0.0.
    return 0.0 - log_ratio(logp, teacher_logp.detach(), mask=mask)
