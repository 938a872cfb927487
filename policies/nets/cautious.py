"""One number out of an ensemble's: the mean, or a cautious combination that members cannot push up by disagreeing."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

Combination = Literal["mean", "wco", "uwo"]


def combine(reward: Tensor, how: str, *, caution: float = 0.1) -> Tensor:
    """One reward out of E: "mean", "wco" (minimum) or "uwo" (mean - caution * variance over members).

    Args:
        reward: (E, ...) of members on one scale; see `RewardEnsemble.calibrate`.
        how: the combination.
        caution: c of "uwo".

    Returns:
        (...) never above the mean.

    Raises:
        ValueError: unknown combination or negative caution.

    Source: Coste et al., Reward Model Ensembles Help Mitigate Overoptimization (WCO, UWO, population variance).
    """
    if how not in get_args(Combination) or caution < 0:
        known = ", ".join(get_args(Combination))
        raise ValueError(f"combination is '{how}' with caution {caution}; expected one of {known}")
    if how == "wco":
        return reward.amin(0)
    mean = reward.mean(0)
    return mean if how == "mean" else mean - caution * reward.var(0, correction=0)
