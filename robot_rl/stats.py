"""Statistics of trials, reports and benchmarks: intervals, tests of pairs, numbers to plan with, means over seeds.

Nothing here knows what was measured; all of it is exact or drawn from a seeded generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True)
class Interval:
    """An estimate and where it lies with the stated confidence."""

    value: float
    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


def wilson(successes: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Confidence interval of a success rate; (0, 1) without trials.

    Args:
        successes: of `trials`.
        trials: n.
        confidence: mass of the interval.

    Raises:
        ValueError: more successes than trials, or confidence outside (0, 1).

    Source: Wilson, Probable Inference, the Law of Succession, and Statistical Inference.
    """
    if not 0 <= successes <= max(trials, 0) or not 0.0 < confidence < 1.0:
        raise ValueError(
            f"got {successes} successes of {trials} trials and confidence {confidence}, expected at most as many "
            "successes as trials, and confidence in (0, 1)"
        )
    if trials < 1:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, square = successes / trials, z * z
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = z * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials)) / (1 + square / trials)
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    return low, 1.0 if successes == trials else min(1.0, middle + half)


def upper_bound(events: int, trials: int) -> float:
    """95 % upper bound of a rate: Clopper-Pearson's for 0 events ("rule of three"), else Wilson's; 1 without trials."""
    if trials < 1:
        return 1.0
    return 1.0 - 0.05 ** (1.0 / trials) if events == 0 else wilson(events, trials, confidence=0.9)[1]


@dataclass(frozen=True)
class Paired:
    """B against A on the same episodes.

    Attributes:
        gained: pairs that B alone won.
        lost: pairs that A alone won.
        pairs: all of them.
    """

    gained: int
    lost: int
    pairs: int

    @classmethod
    def of(cls, a: Sequence[float], b: Sequence[float]) -> Paired:
        """Successes, or numbers of which the larger is the better, of A and B under the same seeds.

        Numbers that agree in six digits are equal, or in nine of the largest of all: the rounding of another order of
        sums is no victory.

        Raises:
            ValueError: no pair, or lengths differ.
        """
        if len(a) != len(b) or not len(a):
            raise ValueError(f"got {len(a)} results of A and {len(b)} of B, expected as many of each, at least one")
        nothing = 1e-9 * max(map(abs, (*a, *b)))
        apart = [(x, y) for x, y in zip(a, b) if not math.isclose(x, y, rel_tol=1e-6, abs_tol=nothing)]
        return cls(sum(y > x for x, y in apart), sum(y < x for x, y in apart), len(a))

    @property
    def change(self) -> float:
        """Share of pairs gained less that of pairs lost: for successes the change of the success rate."""
        return (self.gained - self.lost) / self.pairs

    @property
    def interval(self) -> Interval:
        """95 % interval of the change, normal."""
        odd = self.gained + self.lost
        half = 1.959964 * math.sqrt(max(odd - (self.gained - self.lost) ** 2 / self.pairs, 0.0)) / self.pairs
        return Interval(self.change, self.change - half, self.change + half)

    @property
    def p(self) -> float:
        """Two-sided exact probability of so uneven a split if neither is better; pairs that agree say nothing.

        Source: McNemar, Note on the sampling error of the difference between correlated proportions, in its exact form.
        """
        odd, fewer = self.gained + self.lost, min(self.gained, self.lost)
        # whole numbers divide exactly; a float holds 2^1023 at most
        return min(1.0, 2 * sum(math.comb(odd, k) for k in range(fewer + 1)) / 2**odd) if odd else 1.0

    @property
    def evidence(self) -> float:
        """A betting score against "neither is better" that may be looked at after every pair.

        If neither is better, it ever reaches 1 / alpha with probability alpha at most, so stopping at 20 errs in 5 %
        of all cases however often one looks: 2^n B(gained + 1, lost + 1), the likelihood under a uniform prior of B's
        share by that of a fair coin.

        Source: Ville, Étude critique de la notion de collectif; Howard et al., Time-uniform, nonparametric,
        nonasymptotic confidence sequences (mixture martingales).
        """
        odd = self.gained + self.lost
        fair, ours = 2**odd, (odd + 1) * math.comb(odd, self.gained)
        return fair / ours if fair < ours << 1000 else math.inf


def pairs_to_tell(gain: float, loss: float, *, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """How many pairs in all the exact test of `Paired` needs to tell B from A; None where they do not differ.

    Args:
        gain: expected share of pairs that B alone wins.
        loss: expected share of pairs that A alone wins.
        alpha: two-sided error of calling a difference that is none.
        power: probability of seeing the difference.

    Raises:
        ValueError: shares outside [0, 1] or above 1 together.

    Source: Connor, Sample size for testing differences in proportions for the paired-sample design.
    """
    odd, difference = gain + loss, abs(gain - loss)
    if min(gain, loss) < 0.0 or odd > 1.0:
        raise ValueError(f"gain is {gain} and loss {loss}, expected shares of all pairs, together at most 1")
    if not difference:
        return None
    normal = NormalDist()
    one, two = normal.inv_cdf(1 - alpha / 2), normal.inv_cdf(power)
    return math.ceil((one * math.sqrt(odd) + two * math.sqrt(max(odd - difference**2, 0.0))) ** 2 / difference**2)


def pair_wins(ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray) -> float:
    """Among all pairs of one value of ours and one of theirs, how many ours wins; a tie is half a win."""
    a, b = np.asarray(ours, np.float64)[:, None], np.asarray(theirs, np.float64)
    return float((a > b).sum() + 0.5 * (a == b).sum())


def probability_of_improvement(
    ours: Sequence[Sequence[float]],
    theirs: Sequence[Sequence[float]],
    *,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Mean over tasks of the probability that a run of ours beats one of theirs; seeds are resampled within tasks.

    Args:
        ours: per task, one score per seed.
        theirs: as many tasks.
        resamples: how many draws.
        confidence: mass of the interval.
        seed: of the draws.

    Raises:
        ValueError: other tasks, or one without a score.

    Source: Agarwal et al., Deep RL at the Edge of the Statistical Precipice (probability of improvement).
    """
    if len(ours) != len(theirs) or not all(map(len, (*ours, *theirs))) or not len(ours):
        raise ValueError(f"got {len(ours)} and {len(theirs)} tasks, expected the same ones, each with a score")

    def mean_over(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
        return float(np.mean([pair_wins(x, y) / (len(x) * len(y)) for x, y in zip(a, b)]))

    rng = np.random.default_rng(seed)
    draws = [mean_over(_redraw(ours, rng), _redraw(theirs, rng)) for _ in range(resamples)]
    return _between(mean_over(*([np.asarray(x) for x in side] for side in (ours, theirs))), draws, confidence)


def ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Ranks from 1, ties averaged."""
    _, inverse, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def rank_correlation(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    """Spearman's correlation with averaged ties; NaN where either does not vary.

    Raises:
        ValueError: lengths differ.
    """
    if len(a) != len(b):
        raise ValueError(f"got {len(a)} and {len(b)} values, expected as many of each")
    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum() / scale) if scale else math.nan


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
    return _between(float(statistic(np.arange(count))), draws, confidence)


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
    value = float(values.mean())
    return _between(value, value + spread, confidence)


def stratified_mean(
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
    rng = np.random.default_rng(seed)
    draws = [iqm(np.concatenate(_redraw(scores, rng))) for _ in range(resamples)]
    return _between(iqm(np.concatenate([np.asarray(task, np.float64) for task in scores])), draws, confidence)


def _redraw(scores: Sequence[Sequence[float]], rng: np.random.Generator) -> list[np.ndarray]:
    return [np.asarray(task, np.float64)[rng.integers(0, len(task), len(task))] for task in scores]


def _between(value: float, draws: Sequence[float] | np.ndarray, confidence: float) -> Interval:
    """The value and the middle mass of its draws."""
    low, high = np.quantile(draws, [(1.0 - confidence) / 2, (1.0 + confidence) / 2])
    return Interval(value, float(low), float(high))
