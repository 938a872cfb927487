"""Reward redistribution against loops, its invariants, and its refusals."""

import itertools
import math

import numpy as np
import pytest

from robot_rl.advantage.zoo import redistribute, shaping, shapley
from tests.advantage import reference_groups as slow
from tests.advantage.ragged import both, ragged

close = np.testing.assert_allclose
nan = float("nan")
SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_shaping_sums_to_minus_the_first_potential(seed):
    b = ragged(seed, nan=0)
    rng = np.random.default_rng(seed)
    n = len(b.episode)
    phi, k = rng.random(n), rng.integers(1, 4, n)
    last = np.append(b.episode[1:] != b.episode[:-1], True)
    after = np.where(last, np.nan, np.append(phi[1:], 0))  # the successor of a true end must not be read
    f = both(shaping.potential_shaping, phi, after, 0.9**k, last)
    for e in range(len(b.group)):
        rows = np.flatnonzero(b.episode == e)
        factor, total = 1.0, 0.0
        for t in rows:
            total += factor * f[t]
            factor *= 0.9 ** k[t]
        assert total == pytest.approx(-phi[rows[0]])
    with pytest.raises(ValueError, match="terminated has shape"):
        shaping.potential_shaping(phi, phi, 0.9, last[:1])
    close(both(shaping.progress_delta, phi, phi + 0.2), 0.2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("timing", ["before", "at"])
def test_interventions_equal_a_loop_and_end_no_episode(seed, timing):
    b = ragged(seed, nan=0)
    rng = np.random.default_rng(seed)
    human, after = rng.random(len(b.episode)) < 0.4, rng.random(len(b.group)) < 0.5
    want = np.zeros(len(human))
    for e in range(len(b.group)):
        rows = np.flatnonzero(b.episode == e)
        for before, t in itertools.pairwise([None, *rows, None]):
            starts = human[t] if t is not None else timing == "before" and after[e]
            if starts and (before is None or not human[before]):
                mark = before if timing == "before" else t
                if mark is not None:
                    want[mark] = -1
    got = both(
        lambda h, e, a: shaping.intervention_reward(h, e, timing=timing, human_after_end=a), human, b.episode, after
    )
    assert got.tolist() == want.tolist()
    kept = shaping.intervention_reward(human, b.episode, timing=timing, reward=b.reward, reward_weight=0.5)
    close(kept - 0.5 * b.reward, shaping.intervention_reward(human, b.episode, timing=timing), atol=1e-12)
    with pytest.raises(ValueError, match="timing is 'after'"):
        shaping.intervention_reward(human, b.episode, timing="after")


@pytest.mark.parametrize("seed", SEEDS)
def test_gates_equal_a_loop(seed):
    b = ragged(seed, nan=0)
    rng = np.random.default_rng(seed)
    levels, n = rng.normal(size=(3, len(b.episode))), len(b.group)
    got = both(shaping.gated_reward, levels, b.episode, n_episodes=n, threshold=(0.0, -0.2, 0.3))
    for t, e in enumerate(b.episode):
        rows = b.episode == e
        passes = [levels[1][rows].sum() > -0.2, levels[2][rows].sum() > 0.3]
        want = levels[2][t] + (levels[1][t] if passes[1] else 0) + (levels[0][t] if all(passes) else 0)
        assert got[t] == pytest.approx(want)
    with pytest.raises(ValueError, match="threshold has 2 entries"):
        shaping.gated_reward(levels, b.episode, n, (0.0, 1.0))
    with pytest.raises(ValueError, match="expected \\(levels, rows\\)"):
        shaping.gated_reward(levels[0], b.episode, n)


def test_checklist_judge_failure_excludes_its_turn_only():
    weight, passed = np.array([1.0, 1, 2, 5]), np.array([1.0, nan, 1, 0])
    turn = np.array([0, 0, 1, 1])
    got = both(shaping.checklist_reward, weight, passed, turn, n_turns=3)
    assert np.isnan(got[0])
    assert got[1] == pytest.approx(2 / 7)
    assert np.isnan(got[2])  # a turn without items has no score
    # Item 2 needs the failed judgement of item 1: it does not count.
    chained = shaping.checklist_reward(weight, passed, turn, 3, item=np.array([2]), needs=np.array([1]))
    assert chained[1] == 0
    with pytest.raises(ValueError, match="got only one"):
        shaping.checklist_reward(weight, passed, turn, 3, item=np.array([2]))
    with pytest.raises(ValueError, match=r"outside 0 \.\. 3"):
        shaping.checklist_reward(weight, passed, turn, 3, item=np.array([2]), needs=np.array([9]))


@pytest.mark.parametrize("seed", SEEDS)
def test_spa_and_igpo_rewards_equal_loops(seed):
    b = ragged(seed, nan=0)
    n, rng = len(b.group), np.random.default_rng(seed)
    outcome, prob = rng.random(n), rng.random(len(b.episode))
    got = both(lambda c, e, o: redistribute.spa_reward(c, e, outcome=o, enforce_sum=True), b.reward, b.episode, outcome)
    for e in range(n):
        assert got[b.episode == e].sum() == pytest.approx(outcome[e])
    want = [(b.reward[b.episode == e].sum() - outcome[e]) ** 2 for e in range(n)]
    close(both(redistribute.spa_loss, b.reward, b.episode, outcome), want)
    with pytest.raises(ValueError, match="needs the outcome"):
        redistribute.spa_reward(b.reward, b.episode, enforce_sum=True)
    got = both(redistribute.igpo_reward, prob, b.episode, outcome)
    for t, e in enumerate(b.episode):
        last = t + 1 == len(b.episode) or b.episode[t + 1] != e
        assert got[t] == pytest.approx(outcome[e] if last else prob[t + 1] - prob[t])
    weight = both(redistribute.spa_release_weight, b.episode)
    for t, e in enumerate(b.episode):
        assert weight[t] == (b.episode[t + 1 :] == e).sum()
    with pytest.raises(ValueError, match="release_norm"):
        redistribute.igpo(b.reward, b.episode, b.group, gamma=0.9, release_norm=True)


def test_answer_probability_is_the_geometric_mean():
    got = both(redistribute.answer_probability, np.log([0.5, 0.125, 0.3]), np.array([0, 0, 2]), n_contexts=3)
    close(got, [0.25, nan, 0.3])


@pytest.mark.parametrize("seed", SEEDS)
def test_infopo_equals_its_loop(seed):
    b = ragged(seed, outside=0)
    rng = np.random.default_rng(seed)
    gain = np.where(rng.random(len(b.episode)) < 0.3, 0.0, rng.normal(0, 0.3, len(b.episode)))
    length = rng.integers(1, 5, len(b.episode)).astype(float)
    got = both(redistribute.infopo, gain, length, b.episode, b.group, b.score, beta=0.2)
    outer = slow.normalise(b.score, b.group)
    for t, e in enumerate(b.episode):
        if np.isnan(b.score[e]):
            assert got[t] == 0
            continue
        mates = [
            s for s in range(len(gain)) if b.group[b.episode[s]] == b.group[e] and not np.isnan(b.score[b.episode[s]])
        ]
        tokens = [gain[s] / length[s] for s in mates if gain[s] != 0 for _ in range(int(length[s]))]
        scores = [s for s, g in zip(b.score, b.group) if g == b.group[e] and not np.isnan(s)]
        spread = slow.std(scores) if len(scores) > 1 else 0.0
        z = 0.0
        if gain[t] != 0 and len(tokens) > 1:
            inner = slow.std(tokens)
            z = (gain[t] / length[t] - slow.mean(tokens)) / (inner + 1e-6)
            z *= min(1.0, max(spread, 1.0) / inner) if inner > 0 else 1.0
        want = outer[e] + 0.2 / (1 + math.exp(spread / 0.05)) * z
        assert got[t] == pytest.approx(want, abs=1e-9)
    assert redistribute.infopo_beta(2.0, beta=0.1, decay=0.5) == pytest.approx(0.1 * math.exp(-1))


def test_infopo_gain_ignores_turns_without_actions():
    # Turn 1 has no action rows, so turn 0 caused nothing that was seen; turn 3 belongs to another episode.
    got = both(
        redistribute.infopo_gain, np.array([0.0, 0.5, 9.0]), np.zeros(3), np.array([0, 2, 3]), np.array([0, 0, 0, 1])
    )
    assert got.tolist() == [0, 0.5, 0, 0]


@pytest.mark.parametrize("n", [0, 1, 3, 5])
def test_shapley_equals_all_orders(n):
    rng = np.random.default_rng(n)
    table = rng.random(1 << n)

    def value_of(facts):
        return float(table[sum(1 << i for i in facts)])

    want = np.zeros(n)
    orders = list(itertools.permutations(range(n)))
    for order in orders:
        seen = frozenset()
        for fact in order:
            want[fact] += value_of(seen | {fact}) - value_of(seen)
            seen |= {fact}
    close(both(shapley.shapley, table), want / len(orders))
    close(shapley.shapley_gain(value_of, n), want / len(orders))
    if n:
        sampled = shapley.shapley_sampled(value_of, n, permutations=400, seed=1)
        close(sampled, want / len(orders), atol=0.1)
        assert sampled.sum() == pytest.approx(value_of(range(n)) - value_of([]), abs=1e-12)


def test_shapley_samples_large_sets_and_refuses_bad_tables():
    # An additive game: every order gives every fact its own value.
    got = shapley.shapley_gain(lambda facts: sum(facts) / 10, 10, permutations=3)
    close(got, np.arange(10) / 10)
    close(shapley.shapley_sampled(len, 4, pairs="independent"), np.ones(4))
    with pytest.raises(ValueError, match="3 entries"):
        shapley.shapley(np.ones(3))
    with pytest.raises(ValueError, match="at least one"):
        shapley.shapley_sampled(len, 2, permutations=0)
    share = both(shapley.credit_share, np.array([1.0, 3.0]), temperature=2.0)
    close(share, [1 / (1 + math.e), math.e / (1 + math.e)])
    with pytest.raises(ValueError, match="temperature is 0"):
        shapley.credit_share(np.ones(2), temperature=0)
