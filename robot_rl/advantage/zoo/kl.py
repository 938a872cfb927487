"""Divergences as rewards and losses, and distillation, that no learner uses yet."""

from __future__ import annotations

from typing import Any

from robot_rl.advantage.kinds import Array, as_array, cast, detach, double, library, require_option
from robot_rl.advantage.kl import ESTIMATORS, kl_rows
from robot_rl.advantage.ratios import log_ratio


def kl_reward(
    reward: Array, logp: Array, ref_logp: Array | None, beta: float, *, kind: str = "k1", mask: Array = None
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
    reward = as_array(reward)
    if beta == 0:
        return reward
    _require_reference(ref_logp, beta)
    d = kl_rows(detach(as_array(logp, reward)), detach(as_array(ref_logp, reward)), "k1", mask=mask)
    return cast(double(reward) - beta * double(d), reward)


def kl_loss_rows(
    logp: Array,
    ref_logp: Array | None,
    beta: float,
    *,
    kind: str = "k2",
    mask: Array = None,
    ratio: Array = None,
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
    logp = as_array(logp)
    if beta == 0:
        return library(logp).zeros_like(logp)
    _require_reference(ref_logp, beta)
    rows = beta * kl_rows(logp, ref_logp, kind, mask=mask, **options)
    return rows if ratio is None else rows * detach(as_array(ratio, logp))


def _require_reference(ref_logp: Array | None, beta: float) -> None:
    if ref_logp is None:
        raise ValueError(f"ref_logp is None with beta {beta}; run the reference policy or set beta to 0")


def experimental_opd_advantage(logp: Array, teacher_logp: Array, *, mask: Array = None) -> Array:
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
    logp = detach(as_array(logp))
    # 0 - d, so that equal log-probabilities give 0.0 and not -0.0.
    return 0.0 - log_ratio(logp, detach(as_array(teacher_logp, logp)), mask=mask)


def distribution_kl(log_prob: Array, teacher_log_prob: Array) -> Array:
    """KL(student || teacher) of whole action distributions.

    Args:
        log_prob: (..., A) log-probabilities of the student.
        teacher_log_prob: (..., A) of the teacher, without gradient.

    Returns:
        (...) divergences >= 0.

    Raises:
        ValueError: shapes differ.
    """
    log_prob = as_array(log_prob)
    teacher = detach(as_array(teacher_log_prob, log_prob))
    if tuple(teacher.shape) != tuple(log_prob.shape):
        raise ValueError(f"teacher_log_prob has shape {tuple(teacher.shape)}, expected {tuple(log_prob.shape)}")
    xp = library(log_prob)
    prob = xp.exp(log_prob)
    # An action that the student never takes contributes 0, also where its log-probability is -inf.
    gap = xp.where(prob > 0, log_prob, 0.0) - xp.where(prob > 0, teacher, 0.0)
    return (prob * gap).sum(-1)
