"""One number out of an ensemble's: the mean, or a cautious combination that members cannot push up by disagreeing."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Combination = Literal["mean", "wco", "uwo"]


def combine(reward: Tensor, how: Combination, *, caution: float = 0.1) -> Tensor:
    """One reward out of E: "mean", "wco" (minimum) or "uwo" (mean - caution * variance over members).

    Args:
        reward: (E, ...) of members on one scale; see `RewardEnsemble.calibrate`.
        how: the combination.
        caution: c of "uwo".

    Returns:
        (...) never above the mean.

    Source: Coste et al., Reward Model Ensembles Help Mitigate Overoptimization (WCO, UWO, population variance).
    """
    if how == "wco":
        return reward.amin(0)
    mean = reward.mean(0)
    return mean if how == "mean" else mean - caution * reward.var(0, correction=0)
