"""Pipelines that must not be built: combinations that look harmless and are statistically wrong."""

from __future__ import annotations

from collections.abc import Collection

STD_SCALED = frozenset(
    {
        "agent_wise",
        "ema_grpo",
        "experimental_flow_grpo",
        "gigpo_std",
        "grpo",
        "igpo",
        "lite_ppo",
        "m_grpo",
        "mapo",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "ui_s1",
    }
)
"""Estimators whose result has been divided by a deviation already."""


def check_combination(
    *,
    estimator: str,
    center: str = "none",
    scale: str = "none",
    same_cells: bool = True,
    whiten: bool = False,
    kl_reward: str | None = None,
    allow: Collection[str] = (),
) -> None:
    """Refuse a forbidden pipeline when it is built, before data are collected.

    Args:
        estimator: name of the estimator, for instance "grpo", "rae", "gae".
        center: centre of a normalisation stage after it.
        scale: scale of that stage, "std" or "none".
        same_cells: whether centre and scale use the same cells.
        whiten: whether whitening follows.
        kl_reward: divergence estimator subtracted from the reward, or None.
        allow: names of combinations to permit: "leave_one_out_std", "std_twice", "whiten_rae".

    Raises:
        ValueError: naming the combination and the remedy.
    """
    unknown = set(allow) - {"leave_one_out_std", "std_twice", "whiten_rae"}
    if unknown:
        raise ValueError(f"allow has {sorted(unknown)}, expected of leave_one_out_std, std_twice, whiten_rae")
    if center == "leave_one_out" and scale == "std" and same_cells and "leave_one_out_std" not in allow:
        raise ValueError("leave_one_out with std in the same cells: use scale='none' or allow 'leave_one_out_std'")
    twice = (estimator in STD_SCALED) + (scale == "std") + bool(whiten)
    if twice > 1 and "std_twice" not in allow:
        raise ValueError(
            f"{estimator!r} with scale={scale!r} and whiten={whiten} divides by a deviation {twice} times; "
            "keep one of them or allow 'std_twice'"
        )
    if whiten and estimator == "rae" and "whiten_rae" not in allow:
        raise ValueError("whiten after 'rae' removes the role baseline's offset: drop it or allow 'whiten_rae'")
    if kl_reward is not None and kl_reward != "k1":
        raise ValueError(f"kl_reward is {kl_reward!r}: only k1 is unbiased as a reward; use k2 as a loss instead")
