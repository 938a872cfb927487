"""Estimators on chains whose values are known, and intervals that cover them."""

from dataclasses import replace

import numpy as np
import pytest

from robot_rl.ope.estimators import (
    Logged,
    doubly_robust,
    effective_sample_size,
    importance_sampling,
    per_decision,
    unreliable,
    weighted_importance_sampling,
    weighted_per_decision,
)
from robot_rl.ope.ranking import regret_at_k
from robot_rl.stats import bootstrap

ALL = (importance_sampling, weighted_importance_sampling, per_decision, weighted_per_decision)
GAMMA, STEPS = 0.9, 4


def bandit_chain(count: int, target: float, seed: int = 0, behaviour: float = 0.5) -> Logged:
    """Four steps; at each, action 1 with probability p pays 1 and action 0 pays nothing. The value of a policy with
    probability p is p (1 + 0.9 + 0.81 + 0.729) = 3.439 p, Q(s_t, a) = a + p * (rest)."""
    rng = np.random.default_rng(seed)
    action = rng.random((count, STEPS)) < behaviour
    ratio = np.where(action, np.log(target / behaviour), np.log((1 - target) / (1 - behaviour)))
    rest = np.array([sum(GAMMA**i for i in range(1, STEPS - t)) for t in range(STEPS)])
    return Logged(
        reward=action.astype(float),
        log_ratio=ratio,
        length=np.full(count, STEPS),
        gamma=GAMMA,
        q=action + target * rest,
        v=np.broadcast_to(target * (1 + rest), (count, STEPS)),
    )


@pytest.mark.parametrize("estimate", ALL, ids=lambda f: f.__name__)
def test_policy_equal_to_behaviour_gives_the_sample_mean(estimate):
    logged = bandit_chain(50, 0.5)
    assert estimate(logged) == pytest.approx(logged.returns.mean())


def test_ratios_beyond_all_numbers_give_numbers():
    """400 steps of log ratio 2 are e^800; rewards of zero are worth zero whatever the ratio, others something."""
    nothing = np.zeros((3, 400))
    logged = Logged(nothing, nothing + 2.0, np.full(3, 400), 0.99, nothing, nothing)
    for estimate in (*ALL, doubly_robust, lambda data: doubly_robust(data, self_normalised=False)):
        assert estimate(logged) == 0.0
        assert np.isfinite(estimate(replace(logged, reward=nothing - 100.0)))


@pytest.mark.parametrize("estimate", [*ALL, doubly_robust], ids=lambda f: f.__name__)
def test_estimators_approach_the_exact_value(estimate):
    assert estimate(bandit_chain(40_000, 0.8)) == pytest.approx(0.8 * 3.439, rel=0.03)


@pytest.mark.parametrize("estimate", [*ALL, doubly_robust], ids=lambda f: f.__name__)
def test_bootstrap_intervals_cover_the_exact_value(estimate):
    """95 % intervals over 60 data sets of 200 episodes: at least 85 % cover (about 95 % are expected)."""
    covered = 0
    for seed in range(60):
        logged = bandit_chain(200, 0.7, seed)
        covered += 0.7 * 3.439 in bootstrap(200, lambda i, d=logged: estimate(d.part(i)), resamples=200, seed=seed)
    assert covered >= 51


def test_doubly_robust_with_exact_q_has_no_variance_in_a_deterministic_chain():
    """Deterministic rewards and transitions, exact Q and V: whatever the ratios, the estimate is V(s_0)."""
    values = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        reward = np.tile([1.0, 2.0, 3.0], (6, 1))
        v = np.tile([1 + 0.9 * (2 + 0.9 * 3), 2 + 0.9 * 3, 3.0], (6, 1))
        ratio = rng.normal(0, 1, (6, 3))
        logged = Logged(reward, ratio, np.full(6, 3), 0.9, q=v, v=v)
        values += [doubly_robust(logged), doubly_robust(logged, self_normalised=False)]
    # w_t (r - Q) + w_{t-1} V telescopes: r_t - Q_t = -gamma V_{t+1}
    assert values == pytest.approx([1 + 0.9 * (2 + 0.9 * 3)] * 10)


def test_doubly_robust_reduces_the_spread_of_importance_sampling():
    dr = [doubly_robust(bandit_chain(100, 0.8, s)) for s in range(40)]
    plain = [importance_sampling(bandit_chain(100, 0.8, s)) for s in range(40)]
    assert np.std(dr) < 0.6 * np.std(plain)


def test_ended_episodes_keep_their_last_ratio_with_zero_reward():
    """Two episodes of lengths 1 and 2 by hand: ratios 2, and 3 then 3 * 0.5."""
    logged = Logged(
        reward=np.array([[4.0, 0.0], [1.0, 2.0]]),
        log_ratio=np.log(np.array([[2.0, 1.0], [3.0, 0.5]])),
        length=np.array([1, 2]),
        gamma=0.5,
    )
    assert per_decision(logged) == pytest.approx((2 * 4 + 3 * 1 + 0.5 * 1.5 * 2) / 2)
    assert weighted_per_decision(logged) == pytest.approx((2 * 4 + 3 * 1) / 5 + 0.5 * (1.5 * 2) / (2 + 1.5))
    assert weighted_importance_sampling(logged) == pytest.approx((2 * 4 + 1.5 * 2) / 3.5)


def test_ratios_are_clipped_per_step():
    logged = Logged(np.ones((1, 2)), np.full((1, 2), 100.0), np.array([2]), 1.0)
    assert logged.ratio[0, 1] == pytest.approx(np.exp(10.0))


def test_tail_of_a_cut_episode_has_the_ratio_of_the_whole_episode():
    """Two episodes of two steps by hand, ratios 2 then 2 * 3 = 6, and 4 then 4 * 0.5 = 2. The second one was cut; what
    would follow is worth 10, and pi reaches it with the ratio of both steps, 2, not with that of the first one, 4."""
    logged = Logged(
        reward=np.array([[1.0, 0.0], [0.0, 2.0]]),
        log_ratio=np.log(np.array([[2.0, 3.0], [4.0, 0.5]])),
        length=np.array([2, 2]),
        gamma=0.5,
        tail=np.array([0.0, 10.0]),
    )
    assert importance_sampling(logged) == pytest.approx((6 * 1 + 2 * (1 + 10)) / 2)
    assert weighted_importance_sampling(logged) == pytest.approx((6 * 1 + 2 * (1 + 10)) / 8)
    assert per_decision(logged) == pytest.approx((2 * 1 + 2 * 0.5 * 2 + 2 * 10) / 2)
    assert weighted_per_decision(logged) == pytest.approx(2 / 6 * 1 + 2 / 8 * 0.5 * 2 + 2 / 8 * 10)


def test_effective_sample_size_counts_equal_and_dominated_weights():
    assert effective_sample_size(bandit_chain(50, 0.5)) == pytest.approx(50)
    one = Logged(np.zeros((20, 1)), np.array([[5.0]] + [[-5.0]] * 19), np.ones(20, int), 0.9)
    assert effective_sample_size(one) == pytest.approx(1.0, abs=0.01)
    assert unreliable(one)
    assert not unreliable(bandit_chain(50, 0.5))


def test_doubly_robust_without_q_says_what_is_missing():
    with pytest.raises(ValueError, match="fit them with FQE first"):
        doubly_robust(Logged(np.zeros((2, 2)), np.zeros((2, 2)), np.array([2, 2]), 0.9))


def test_ranking_metrics_by_hand():
    estimate, truth = [3.0, 1.0, 2.0, 0.0], [10.0, 30.0, 20.0, 0.0]
    assert regret_at_k(estimate, truth, 1) == 20.0
    assert regret_at_k(estimate, truth, 2) == 10.0


@pytest.mark.parametrize("drift", [-1.0, 1.0])
def test_long_episodes_far_from_the_behaviour_have_numbers_and_are_unreliable(drift):
    log = drift + 0.1 * np.random.default_rng(0).normal(size=(50, 1000))
    logged = Logged(np.ones((50, 1000)), log, np.full(50, 1000), 0.99)
    assert 1.0 <= effective_sample_size(logged) < 10.0
    assert unreliable(logged)
    assert weighted_importance_sampling(logged) == pytest.approx(logged.returns[0])
