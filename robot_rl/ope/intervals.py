"""Averages with honest spreads: interquartile mean, percentile bootstrap over episodes, stratified over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """An estimate and where it lies with the stated confidence."""

    value: float
    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


def iqm(values: np.ndarray) -> float:
    """Mean of the middle half, fractional at the edges; of fewer than 3 values their mean.

    Source: Agarwal et al., Deep RL at the Edge of the Statistical Precipice (interquartile mean).
    """
    ordered = np.sort(np.asarray(values, np.float64).ravel())
    count = len(ordered)
    if count < 3:
        return float(ordered.mean())
    weight = np.clip(np.arange(1, count + 1) - count / 4, 0.0, 1.0)
    weight = np.minimum(weight, weight[::-1])
    return float((ordered * weight).sum() / weight.sum())


def bootstrap(
    count: int,
    statistic: Callable[[np.ndarray], float],
    *,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap over `count` exchangeable units, usually episodes.

    Args:
        count: number of units.
        statistic: (count,) indices, drawn with replacement -> value.
        resamples: how many draws.
        confidence: mass of the interval.
        seed: of the draws.

    Raises:
        ValueError: no unit, or confidence outside (0, 1).
    """
    if count < 1 or not 0.0 < confidence < 1.0:
        raise ValueError(f"count is {count} and confidence {confidence}, expected at least 1 and (0, 1)")
    rng = np.random.default_rng(seed)
    draws = [statistic(rng.integers(0, count, count)) for _ in range(resamples)]
    tail = 100.0 * (1.0 - confidence) / 2
    low, high = np.percentile(draws, [tail, 100.0 - tail])
    return Interval(float(statistic(np.arange(count))), float(low), float(high))


def half_samples(values: np.ndarray, *, confidence: float = 0.95, seed: int = 0, draws: int = 200_000) -> Interval:
    """Interval of a mean over units of estimates that were each fitted to a random half of the data.

    The variance of such estimates is that of the estimate from all data (delete-d jackknife with d = n/2; Shao and Wu,
    A General Theory for Jackknife Variance Estimation). With M of them it is known to M - 1 degrees of freedom, so the
    interval is Student's; percentiles of a handful of values would be their range and hold the truth in
    (M - 1) / (M + 1) of all cases at most. The units' own spread (first states) is added.

    Args:
        values: (M, E) of M estimates on E units.
        confidence: mass of the interval.
        seed: of the draws.
        draws: from which its quantiles are read.

    Raises:
        ValueError: nothing to average, or confidence outside (0, 1).
    """
    if values.ndim != 2 or not values.size or not 0.0 < confidence < 1.0:
        raise ValueError(
            f"values have shape {values.shape} and confidence is {confidence}, expected (M, E) with at least one of "
            "each and (0, 1)"
        )
    members, units = values.shape
    rng = np.random.default_rng(seed)
    of_units = values.mean(0).std(ddof=1) / math.sqrt(units) if units > 1 else 0.0
    spread = rng.normal(0.0, of_units, draws)
    if members > 1:
        spread += rng.standard_t(members - 1, draws) * values.mean(1).std(ddof=1)
    value, tail = float(values.mean()), 100.0 * (1.0 - confidence) / 2
    low, high = np.percentile(spread, [tail, 100.0 - tail])
    return Interval(value, value + float(low), value + float(high))


def stratified(
    scores: Sequence[Sequence[float]], *, resamples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Interquartile mean over tasks and seeds; seeds are resampled within each task.

    Args:
        scores: per task, one score per seed.
        resamples: how many draws.
        confidence: mass of the interval.
        seed: of the draws.

    Source: Agarwal et al., Deep RL at the Edge of the Statistical Precipice (stratified bootstrap).
    """
    tasks = [np.asarray(task, np.float64) for task in scores]
    rng = np.random.default_rng(seed)
    draws = [
        iqm(np.concatenate([task[rng.integers(0, len(task), len(task))] for task in tasks])) for _ in range(resamples)
    ]
    tail = 100.0 * (1.0 - confidence) / 2
    low, high = np.percentile(draws, [tail, 100.0 - tail])
    return Interval(iqm(np.concatenate(tasks)), float(low), float(high))
