"""Statistics against numbers worked out by hand, published bounds, and simulated experiments."""

import math

import numpy as np
import pytest

from robot_rl.stats import (
    Paired,
    half_samples,
    iqm,
    pair_wins,
    pairs_to_tell,
    probability_of_improvement,
    rank_correlation,
    stratified_mean,
    upper_bound,
    wilson,
)


def test_wilson_interval_against_published_bounds():
    # all successes: lower bounds of 20, 50, 100 and 250 trials
    for n, low in ((20, 0.84), (50, 0.93), (100, 0.96), (250, 0.985)):
        assert wilson(n, n)[0] == pytest.approx(low, abs=0.005)
        assert wilson(n, n)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(5, 10)
    assert (low, high) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))


def test_wilson_refuses_more_successes_than_trials():
    with pytest.raises(ValueError, match="4 successes of 3 trials"):
        wilson(4, 3)


def test_upper_bound_follows_the_rule_of_three_without_events():
    assert upper_bound(0, 300) == pytest.approx(0.00994, abs=1e-4)
    assert 0.02 < upper_bound(1, 100) < 0.06
    assert upper_bound(0, 0) == 1.0


def test_paired_counts_by_hand():
    """Of six pairs B alone wins three and A alone one: p = 2 (C(4,0) + C(4,1)) / 2^4 = 10 / 16."""
    found = Paired.of([0, 0, 0, 1, 1, 0], [1, 1, 1, 0, 1, 0])
    assert (found.gained, found.lost, found.pairs) == (3, 1, 6)
    assert found.change == pytest.approx(2 / 6)
    assert found.p == pytest.approx(0.625)
    half = 1.959964 * math.sqrt(4 - 4 / 6) / 6
    assert found.interval.low == pytest.approx(2 / 6 - half)
    # 2^4 Beta(4, 2) = 16 * 3! 1! / 5! = 0.8
    assert found.evidence == pytest.approx(0.8)


def test_paired_without_a_difference_says_nothing():
    found = Paired.of([1, 0, 1], [1, 0, 1])
    assert (found.p, found.change, found.evidence) == (1.0, 0.0, 1.0)
    # the first three differ by their rounding
    found = Paired.of([100.0, -3.0, 0.0, 0.0], [100.0 + 1e-7, -3.0 - 1e-7, 1e-12, 1e-3])
    assert (found.gained, found.lost, found.pairs) == (1, 0, 4)
    with pytest.raises(ValueError, match="3 results of A and 2 of B"):
        Paired.of([1, 0, 1], [1, 0])


def test_evidence_looked_at_after_every_pair_errs_in_five_percent_at_most():
    """300 experiments of 60 fair pairs, stopped as soon as it reaches 20; the exact test errs far more often."""
    coins = np.random.default_rng(0).integers(0, 2, (300, 60)).cumsum(1)
    wrong_evidence = wrong_p = 0
    for won in coins:
        looks = [Paired(int(w), n + 1 - int(w), n + 1) for n, w in enumerate(won)]
        wrong_evidence += any(look.evidence >= 20 for look in looks)
        wrong_p += any(look.p <= 0.05 for look in looks)
    assert wrong_evidence <= 15
    assert wrong_p > 30


def test_pairs_to_tell_against_the_published_example():
    """Gains of .3 against losses of .1: (1.96 sqrt .4 + .8416 sqrt .36)^2 / .04 = 76.0, rounded up."""
    assert pairs_to_tell(0.3, 0.1) == math.ceil((1.959964 * math.sqrt(0.4) + 0.841621 * math.sqrt(0.36)) ** 2 / 0.04)
    assert pairs_to_tell(0.2, 0.2) is None
    rng, n = np.random.default_rng(0), pairs_to_tell(0.3, 0.1)
    assert n is not None
    draws = rng.multinomial(n, [0.3, 0.1, 0.6], size=600)
    told = np.mean([Paired(int(g), int(s), n).p <= 0.05 for g, s, _ in draws])
    assert 0.68 < told < 0.9


def test_pair_wins_and_probability_of_improvement_by_hand():
    """3 and 1 against 2 and 1: wins are 3>2, 3>1 and half of 1=1, of four pairs."""
    assert pair_wins([3, 1], [2, 1]) == 2.5
    found = probability_of_improvement([[3, 1], [5, 5]], [[2, 1], [0, 0]])
    assert found.value == pytest.approx((2.5 / 4 + 1.0) / 2)
    assert found.value in found
    assert found.high <= 1.0
    with pytest.raises(ValueError, match="2 and 1 tasks"):
        probability_of_improvement([[1], [1]], [[1]])


def test_rank_correlation_by_hand():
    # ranks 4 2 3 1 and 2 4 3 1: 1 - 6 * (4 + 4) / (4 * 15) = 0.2
    assert rank_correlation([3.0, 1.0, 2.0, 0.0], [10.0, 30.0, 20.0, 0.0]) == pytest.approx(0.2)
    assert rank_correlation([1, 1, 2], [5, 5, 9]) == pytest.approx(1.0)
    assert np.isnan(rank_correlation([1, 1], [0, 1]))


def test_interval_of_half_samples_is_students():
    """Members at 1, 2, 3 on alike units: 2 plus or minus t_2(.975) = 4.303 times their deviation 1."""
    found = half_samples(np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
    assert found.value == 2.0
    assert found.low == pytest.approx(2 - 4.303, abs=0.08)
    assert found.high == pytest.approx(2 + 4.303, abs=0.08)


def test_interval_of_half_samples_of_one_member_is_the_units_own():
    units = np.array([[0.0, 2.0] * 50])
    found = half_samples(units)
    width = 1.96 * units.std(ddof=1) / 10
    assert (found.low, found.high) == (pytest.approx(1 - width, abs=0.01), pytest.approx(1 + width, abs=0.01))


def test_interval_of_half_samples_covers_as_often_as_it_says():
    """Mean of a normal sample from means of its random halves."""
    rng, hits = np.random.default_rng(0), 0
    for trial in range(400):
        sample = rng.normal(size=60)
        halves = [[sample[rng.permutation(60)[:30]].mean()] for _ in range(5)]
        hits += 0.0 in half_samples(np.array(halves), seed=trial, draws=4000)
    assert 360 <= hits <= 398


def test_half_samples_without_values_are_refused():
    with pytest.raises(ValueError, match=r"expected \(M, E\)"):
        half_samples(np.zeros((0, 3)))


def test_interquartile_mean_by_hand():
    assert iqm(np.array([0.0, 1.0, 2.0, 99.0])) == pytest.approx(1.5)
    assert iqm(np.arange(8.0)) == pytest.approx(3.5)
    assert iqm(np.array([1.0, 4.0])) == pytest.approx(2.5)
    # five values: weights 0, 0.75, 1, 0.75, 0
    assert iqm(np.array([0.0, 1.0, 2.0, 4.0, 100.0])) == pytest.approx((0.75 + 2 + 3) / 2.5)


def test_stratified_interval_contains_its_value_and_shrinks_with_seeds():
    few = stratified_mean([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    many = stratified_mean([list(np.linspace(1, 3, 40)), list(np.linspace(2, 4, 40))])
    assert few.value in few
    assert many.high - many.low < few.high - few.low


def test_paired_counts_of_thousands_of_pairs() -> None:
    """By the normal law: two-sided, z = (200 - 1) / sqrt(2000) = 4.450, p = 8.6e-6."""
    long = Paired(1100, 900, 2000)
    assert long.p == pytest.approx(8.457e-6, rel=1e-3)
    assert long.evidence == pytest.approx(624.3, rel=1e-3)
    assert Paired(2000, 0, 2000).evidence == math.inf
