"""Values of a policy from logged episodes of another: importance sampling and doubly robust estimators.

All work on episodes padded to the longest: (E, T) arrays with `length` (E,). Ratios are cumulated in log space with a
clip per step. An episode that has ended keeps its last ratio, with reward, Q and V zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

STEP_CLIP = 5.0
"""Bound of |log ratio| of one step."""
TOTAL_CLIP = 500.0
"""Bound of the log of a product of ratios: e^500 times any return is still a number, and e^710 is none."""


@dataclass(frozen=True)
class Logged:
    """What the estimators read.

    Attributes:
        reward: (E, T), zero behind the end.
        log_ratio: (E, T) log pi(a|s) - log mu(a|s), zero behind the end.
        length: (E,) steps.
        gamma: discount per step.
        q: (E, T) Q^pi(s_t, a_t), or None for estimators without a model.
        v: (E, T) E_{a ~ pi} Q^pi(s_t, a), or None.
        tail: (E,) V at the end of episodes that were cut rather than terminated, times gamma^length; zero where
            terminated. None leaves it out.
    """

    reward: np.ndarray
    log_ratio: np.ndarray
    length: np.ndarray
    gamma: float
    q: np.ndarray | None = None
    v: np.ndarray | None = None
    tail: np.ndarray | None = None

    def __post_init__(self) -> None:
        shape = self.reward.shape
        for name, value in (("log_ratio", self.log_ratio), ("q", self.q), ("v", self.v)):
            if value is not None and value.shape != shape:
                raise ValueError(f"{name} has shape {value.shape}, expected {shape} like reward: (episodes, steps)")
        if self.length.shape != shape[:1]:
            raise ValueError(f"length has shape {self.length.shape}, expected ({shape[0]},)")

    def part(self, episodes: np.ndarray) -> Logged:
        """Some episodes, with repetition."""
        cut = {name: value[episodes] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(self, **cut)

    @property
    def ratio(self) -> np.ndarray:
        """(E, T) product of the ratios up to and including each step."""
        total = np.cumsum(np.clip(self.log_ratio, -STEP_CLIP, STEP_CLIP), axis=1)
        return np.exp(total.clip(max=TOTAL_CLIP))

    @property
    def share(self) -> np.ndarray:
        """(E, T) `ratio` over its sum over episodes, from logarithms: those of long episodes are beyond all numbers."""
        total = np.cumsum(np.clip(self.log_ratio, -STEP_CLIP, STEP_CLIP), axis=1)
        weight = np.exp(total - total.max(0))
        return weight / weight.sum(0)

    @property
    def powers(self) -> np.ndarray:
        """(T,) gamma^t."""
        return self.gamma ** np.arange(self.reward.shape[1])

    @property
    def returns(self) -> np.ndarray:
        """(E,) discounted returns, with the tail of cut episodes where it is known."""
        total = (self.reward * self.powers).sum(1)
        return total if self.tail is None else total + self.tail


def importance_sampling(logged: Logged) -> float:
    """Mean of ratio times return, the ratio of the whole episode; unbiased, of huge variance."""
    return float((logged.ratio[:, -1] * logged.returns).mean())


def weighted_importance_sampling(logged: Logged) -> float:
    """As `importance_sampling`, divided by the sum of ratios, not by their number: biased, bounded by the returns."""
    return float((logged.share[:, -1] * logged.returns).sum())


def per_decision(logged: Logged) -> float:
    """Every reward with the ratio up to its own step only.

    Source: Precup, Sutton and Singh, Eligibility Traces for Off-Policy Policy Evaluation.
    """
    total = (logged.ratio * logged.reward * logged.powers).sum(1)
    if logged.tail is not None:
        total = total + logged.ratio[:, -1] * logged.tail
    return float(total.mean())


def weighted_per_decision(logged: Logged) -> float:
    """As `per_decision`, each step's ratios divided by their sum over episodes."""
    share = logged.share
    total = (share * logged.reward * logged.powers).sum()
    if logged.tail is not None:
        total += (share[:, -1] * logged.tail).sum()
    return float(total)


def doubly_robust(logged: Logged, *, self_normalised: bool = True) -> float:
    """sum_e sum_t gamma^t (w_t (r_t - Q(s_t, a_t)) + w_{t-1} V(s_t)), right where either ratios or Q are.

    Args:
        logged: with `q` and `v`.
        self_normalised: w_t = ratio / sum over episodes (WDR), else ratio / E (DR); w_{-1} = 1 / E.

    Raises:
        ValueError: q or v is missing.

    Source: Jiang and Li, Doubly Robust Off-policy Value Evaluation; Thomas and Brunskill, Data-Efficient Off-Policy
    Policy Evaluation (weighted form).
    """
    if logged.q is None or logged.v is None:
        raise ValueError("doubly robust estimation needs q and v; fit them with FQE first")
    count = len(logged.reward)
    weight = logged.share if self_normalised else logged.ratio / count
    before = np.concatenate((np.full((count, 1), 1.0 / count), weight[:, :-1]), axis=1)
    total = ((weight * (logged.reward - logged.q) + before * logged.v) * logged.powers).sum()
    if logged.tail is not None:
        total += (weight[:, -1] * logged.tail).sum()
    return float(total)


def effective_sample_size(logged: Logged) -> float:
    """(sum w)^2 / sum w^2 of the whole episodes' ratios: how many episodes really count."""
    return float(1.0 / np.square(logged.share[:, -1]).sum())


def unreliable(logged: Logged) -> bool:
    """Whether fewer than 10 episodes, or 1 % of them, really count."""
    size = effective_sample_size(logged)
    return size < 10.0 or size < 0.01 * len(logged.length)
