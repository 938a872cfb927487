"""Group estimators against their slow twins on random ragged batches, and the properties that they share."""

import numpy as np
import pytest
import torch

from robot_rl.advantage import groups, turn_groups
from robot_rl.advantage.zoo import actors, redistribute
from robot_rl.advantage.zoo import groups as zoo_groups
from robot_rl.advantage.zoo import turn_groups as zoo_turn_groups
from robot_rl.advantage.zoo.state import EmaScale
from tests.advantage import reference_groups as slow
from tests.advantage.ragged import both, permute_episodes, ragged

SEEDS = range(4)
close = np.testing.assert_allclose


@pytest.mark.parametrize("seed", SEEDS)
def test_episode_estimators_equal_their_twins(seed):
    b = ragged(seed)
    s, g = b.score, b.group
    close(both(groups.grpo, s, g), slow.normalise(s, g), atol=1e-9)
    close(both(zoo_groups.m_grpo, s, g), slow.normalise(s, g, eps=1e-4), atol=1e-9)
    close(both(groups.dr_grpo, s, g), slow.normalise(s, g, scale="none"), atol=1e-9)
    close(both(groups.rloo, s, g), slow.normalise(s, g, "leave_one_out", "none"), atol=1e-9)
    close(both(groups.lite_ppo, s, g), slow.normalise(s, g, batch_scale=True), atol=1e-9)
    members = slow.cell_members(s, g)
    for value, group, got in zip(s, g, both(zoo_groups.pass_k, s, g)):
        ranked = sorted(members.get(group, []))
        best = group != -1 and len(ranked) > 1 and value == ranked[-1] > ranked[-2]
        assert got == pytest.approx(ranked[-1] - ranked[-2] if best else 0.0)
    for i, got in enumerate(both(zoo_groups.spo_from_score, s, g)):
        others = [s[j] for j in range(len(s)) if j != i and g[j] == g[i] and not np.isnan(s[j])]
        if np.isnan(s[i]):
            assert np.isnan(got)
        else:
            wins = sum(1.0 if s[i] > o else 0.5 if s[i] == o else 0.0 for o in others)
            assert got == pytest.approx(wins / len(others) if others and g[i] != -1 else 0.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_weighted_greedy_and_counted_baselines_equal_their_twins(seed):
    b = ragged(seed)
    s, g, rng = b.score, b.group, np.random.default_rng(seed)
    ok = ~np.isnan(s) & (g != -1)
    want = np.zeros(len(s))
    for i in np.flatnonzero(ok):
        rows = ok & (g == g[i])
        if rows.sum() > 1 and np.ptp(s[rows]) > 1e-6:
            want[i] = s[i] - (b.length[rows] * s[rows]).sum() / b.length[rows].sum()
    close(both(zoo_groups.opo, s, g, b.length), want, atol=1e-9)
    greedy = rng.random(len(s)) < 0.3
    want = np.zeros(len(s))
    for i in np.flatnonzero(ok & ~greedy):
        rows = ok & greedy & (g == g[i])
        want[i] = s[i] - s[rows].mean() if rows.any() else 0.0
    close(both(zoo_groups.remax, s, g, greedy), want, atol=1e-9)
    alpha = (~np.isnan(s)).sum() / (np.nan_to_num(s) != 0).sum()
    close(both(zoo_groups.gpg, s, g), alpha * np.array(slow.normalise(s, g, scale="none")), atol=1e-9)


def test_whitened_baseline_leaves_out_episodes_of_no_group():
    """Rows .5, -.5, -.5 have mean -1/6 and deviation .57735 (ddof 1); the row of the third episode gets 0."""
    score, group, rows = np.array([1.0, 0.0, 9.0]), np.array([0, 0, -1]), np.array([0, 1, 1, 2])
    got = both(zoo_groups.reinforce_pp_baseline, score, group, rows, np.ones(4, bool), eps=0.0)
    close(got, [2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5, 0.0], atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_turn_estimators_equal_their_twins(seed):
    b = ragged(seed)
    r, e, g, a = b.reward, b.episode, b.group, b.anchor
    close(both(turn_groups.trloo, r, e, g, gamma=0.9), slow.trloo(r, e, g, 0.9), atol=1e-9)
    close(both(turn_groups.trloo, r, e, g, gamma=0.9, absent="zero"), slow.trloo_absent(r, e, g, 0.9), atol=1e-9)
    for mode, scale in (("mean_norm", "none"), ("mean_std_norm", "std")):
        got = both(turn_groups.gigpo, r, e, g, a, gamma=0.8, omega=0.7, mode=mode)
        close(got, slow.gigpo(r, e, g, a, 0.8, 0.7, scale), atol=1e-9)
    close(both(turn_groups.mapo, r, e, g, experimental_alpha=0.3), slow.mapo(r, e, g, 0.9, 0.3), atol=1e-9)
    close(both(zoo_turn_groups.cm2_turn, r, e, g, min_members=3), slow.cm2(r, e, g, 3), atol=1e-9)
    value = slow.returns(r, e, 0.9)
    use = [not np.isnan(v) for v in value]
    close(both(zoo_turn_groups.reinforce_pp, r, e, gamma=0.9), slow.whiten(np.nan_to_num(value), use), atol=1e-9)
    for release in (False, True):
        gamma = 1.0 if release else 0.9
        got = both(redistribute.igpo, r, e, g, gamma=gamma, release_norm=release)
        close(got, slow.igpo(r, e, g, gamma, release), atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_actor_estimators_equal_their_twins(seed):
    b = ragged(seed)
    for weight in ("activation", "episode"):
        got = both(actors.agent_wise, b.score, b.group, b.episode, b.actor, weight=weight)
        close(got, slow.agent_wise(b.score, b.group, b.episode, b.actor, weight == "episode"), atol=1e-9)
    r = np.nan_to_num(b.reward)
    value = slow.actor_returns(r, b.episode, b.actor, 0.9)
    close(both(actors.mars, r, b.episode, b.actor, gamma=0.9), slow.normalise(value, b.actor, scale="none"), atol=1e-9)
    guess = np.linspace(0, 1, len(r))
    want = slow.normalise(np.array(value) - guess, b.actor, scale="none")
    close(actors.mars(r, b.episode, b.actor, gamma=0.9, value=guess), want, atol=1e-9)
    weight = both(actors.own_turn_weight, b.episode, b.actor, gamma=0.9)
    for t in range(len(r)):
        left = sum(1 for s in range(t + 1, len(r)) if (b.episode[s], b.actor[s]) == (b.episode[t], b.actor[t]))
        assert weight[t] == pytest.approx(0.9**left)
    mean = both(groups.actor_means, r, b.actor, n_actors=4)
    for k in range(3):
        assert mean[k] == pytest.approx(r[b.actor == k].mean())
    assert np.isnan(mean[3])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("on", ["return", "scores"])
def test_ui_s1_equals_its_twin(seed, on):
    b = ragged(seed, nan=0, outside=0)
    match = np.random.default_rng(seed).random(len(b.reward)) < 0.7
    got = both(zoo_turn_groups.ui_s1, b.reward, match, b.episode, b.group, episode_on=on)
    close(got, slow.ui_s1(b.reward, match, b.episode, b.group, 0.5, on == "scores", 0.3), atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_otb_equals_its_twin(seed):
    b = ragged(seed, nan=0, outside=0)
    rng = np.random.default_rng(seed)
    prob, square = rng.random(len(b.reward)), rng.random(len(b.reward))
    weight = both(zoo_turn_groups.otb_weight, prob, square, b.episode)
    per_turn = both(zoo_turn_groups.otb_weight, prob, square, b.episode, turn=None)
    close(weight, per_turn)
    for t in range(len(prob)):
        rows = [s for s in range(t + 1) if b.episode[s] == b.episode[t]]
        assert weight[t] == pytest.approx(sum(1 - 2 * prob[s] + square[s] for s in rows))
    turn = b.turn_index // 2  # two rows per turn: the sum restarts at rows 2, 4, ...
    restarted = zoo_turn_groups.otb_weight(prob, square, b.episode, turn=turn)
    for t in range(len(prob)):
        rows = [s for s in range(t + 1) if b.episode[s] == b.episode[t] and turn[s] == turn[t]]
        assert restarted[t] == pytest.approx(sum(1 - 2 * prob[s] + square[s] for s in rows))
    weight = np.abs(weight) + 0.1
    got = both(zoo_turn_groups.otb, b.reward, weight, b.episode, b.group)
    for t in range(len(prob)):
        cell = [
            s
            for s in range(len(prob))
            if b.group[b.episode[s]] == b.group[b.episode[t]] and b.turn_index[s] == b.turn_index[t]
        ]
        base = sum(weight[s] * b.reward[s] for s in cell) / sum(weight[s] for s in cell)
        single = len(cell) < 2 or np.ptp(b.reward[cell]) < 1e-6
        assert got[t] == pytest.approx(0.0 if single else b.reward[t] - base, abs=1e-9)


EPISODE_LEVEL = {
    "grpo": groups.grpo,
    "dr_grpo": groups.dr_grpo,
    "rloo": groups.rloo,
    "lite_ppo": groups.lite_ppo,
    "m_grpo": zoo_groups.m_grpo,
    "pass_k": zoo_groups.pass_k,
    "lite_ppo_centered": lambda s, g: groups.lite_ppo(s, g, scale_of="centered"),
    "opo": lambda s, g: zoo_groups.opo(s, g, s * 0 + 3.0),
    "spo": lambda s, g: groups.grpo(zoo_groups.spo_from_score(s, g), g),
}


@pytest.mark.parametrize("name", EPISODE_LEVEL)
@pytest.mark.parametrize("seed", SEEDS)
def test_adding_a_constant_to_all_outcomes_changes_nothing(name, seed):
    b = ragged(seed)
    estimator = EPISODE_LEVEL[name]
    close(estimator(b.score + 2.5, b.group), estimator(b.score, b.group), atol=1e-9)


def test_adding_a_constant_from_the_first_batch_on_does_not_change_ema_grpo():
    plain, shifted = EmaScale(0.8), EmaScale(0.8)
    for seed in range(3):
        b = ragged(seed)
        want = plain.advantage(b.score, b.group, b.group % 3)
        close(shifted.advantage(b.score + 2.0, b.group, b.group % 3), want, atol=1e-6)


def test_relabelled_actors_and_turns_change_nothing():
    b = ragged(5)
    r = np.nan_to_num(b.reward)
    other = np.array([70, 4, 2**50])[b.actor]
    close(actors.mars(r, b.episode, other), actors.mars(r, b.episode, b.actor), atol=1e-12)
    want = actors.agent_wise(b.score, b.group, b.episode, b.actor)
    close(actors.agent_wise(b.score, b.group, b.episode, other), want, atol=1e-12)
    named = np.array([5, 8, 13, 21, 34, 55])[b.turn_index]  # other names in the same order
    for estimator in (turn_groups.trloo, turn_groups.mapo, zoo_turn_groups.cm2_turn):
        want = estimator(b.reward, b.episode, b.group)
        close(estimator(b.reward, b.episode, b.group, turn_index=named), want, atol=1e-12)
    anchor = np.array([0, 2**62, 5, -9])[b.anchor]
    want = turn_groups.gigpo(b.reward, b.episode, b.group, b.anchor)
    close(turn_groups.gigpo(b.reward, b.episode, b.group, anchor), want, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_std_estimators_do_not_depend_on_the_unit_of_the_score(seed):
    b = ragged(seed)
    for estimator in (groups.grpo, groups.lite_ppo, zoo_groups.m_grpo):
        close(estimator(b.score * 3, b.group), estimator(b.score, b.group), rtol=5e-4, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_centred_estimators_have_mean_zero_per_group_and_rloo_is_scaled_dr_grpo(seed):
    b = ragged(seed)
    for group in set(b.group) - {-1}:
        rows = (b.group == group) & ~np.isnan(b.score)
        n = rows.sum()
        for estimator in (groups.grpo, groups.dr_grpo, groups.rloo):
            assert abs(estimator(b.score, b.group)[rows].sum()) < 1e-9
        scaled = groups.rloo(b.score, b.group)[rows] * (n - 1) / n
        close(scaled, groups.dr_grpo(b.score, b.group)[rows], atol=1e-12)


@pytest.mark.parametrize("name", EPISODE_LEVEL)
def test_relabelled_and_permuted_groups_give_permuted_results(name):
    b = ragged(11)
    want = EPISODE_LEVEL[name](b.score, b.group)
    names = {-1: -1, 3: 2**61, 40: 0, 10**12: 5, 7: 6}
    close(EPISODE_LEVEL[name](b.score, np.array([names[g] for g in b.group])), want, atol=1e-12)
    if name == "pass_k":  # a shared best is no best, so ties need no order either
        assert np.count_nonzero(want) <= 4
    order = np.random.default_rng(0).permutation(len(b.score))
    close(EPISODE_LEVEL[name](b.score[order], b.group[order]), want[order], atol=1e-12)


TURN_LEVEL = {
    "trloo": lambda b: turn_groups.trloo(b.reward, b.episode, b.group, gamma=0.9),
    "trloo_zero": lambda b: turn_groups.trloo(b.reward, b.episode, b.group, gamma=0.9, absent="zero"),
    "gigpo": lambda b: turn_groups.gigpo(b.reward, b.episode, b.group, b.anchor),
    "gigpo_first": lambda b: turn_groups.gigpo(b.reward, b.episode, b.group, b.anchor, first_visit=True),
    "gigpo_rows": lambda b: turn_groups.gigpo(b.reward, b.episode, b.group, b.anchor, unit="rows"),
    "mapo": lambda b: turn_groups.mapo(b.reward, b.episode, b.group),
    "cm2": lambda b: zoo_turn_groups.cm2_turn(b.reward, b.episode, b.group, min_members=2),
    "reinforce_pp": lambda b: zoo_turn_groups.reinforce_pp(b.reward, b.episode),
    "agent_wise": lambda b: actors.agent_wise(b.score, b.group, b.episode, b.actor),
    "mars": lambda b: actors.mars(np.nan_to_num(b.reward), b.episode, b.actor),
    "igpo": lambda b: redistribute.igpo(b.reward, b.episode, b.group),
    "ui_s1": lambda b: zoo_turn_groups.ui_s1(b.reward, b.anchor > 0, b.episode, b.group),
    "ui_s1_scores": lambda b: zoo_turn_groups.ui_s1(b.reward, b.anchor > 0, b.episode, b.group, episode_on="scores"),
}


@pytest.mark.parametrize("name", TURN_LEVEL)
@pytest.mark.parametrize("seed", SEEDS)
def test_permuting_episodes_permutes_turn_advantages_and_nothing_is_nan(name, seed):
    b = ragged(seed)
    want = TURN_LEVEL[name](b)
    assert np.isfinite(want).all()
    moved, rows, _ = permute_episodes(b, seed)
    close(TURN_LEVEL[name](moved), want[rows], atol=1e-9)


@pytest.mark.parametrize("name", TURN_LEVEL)
def test_float32_agrees_with_float64(name):
    b = ragged(2)
    want = TURN_LEVEL[name](b)
    b.reward, b.score = b.reward.astype(np.float32), b.score.astype(np.float32)
    got = TURN_LEVEL[name](b)
    assert got.dtype == np.float32
    close(got, want, atol=2e-5)


def test_first_visit_leaves_later_visits_without_a_turn_part():
    # One group, anchor 5 visited twice by episode 0 (returns 1, 1) and once by episode 1 (return 0).
    reward, episode = np.array([0.0, 1.0, 0.0]), np.array([0, 0, 1])
    group, anchor = np.array([0, 0]), np.array([5, 5, 5])
    got = turn_groups.gigpo(reward, episode, group, anchor, gamma=1.0, first_visit=True)
    # Episode part ±.5; turn part of first visits: mean .5, so ±.5; none for the second visit.
    close(got, [1.0, 0.5, -1.0])
    every = turn_groups.gigpo(reward, episode, group, anchor, gamma=1.0)
    close(every, [0.5 + 1 / 3, 0.5 + 1 / 3, -0.5 - 2 / 3])


def test_gigpo_by_rows_counts_an_episode_once_per_turn():
    # Scores 1 (three turns) and 0 (one turn): mean over rows .75; no anchors.
    reward, episode = np.array([0, 0, 1.0, 0]), np.array([0, 0, 0, 1])
    got = turn_groups.gigpo(reward, episode, np.array([0, 0]), np.zeros(4, int), unit="rows")
    close(got, [0.25, 0.25, 0.25, -0.75])
    given = turn_groups.gigpo(reward, episode, np.array([0, 0]), np.zeros(4, int), score=np.array([3.0, 1.0]))
    close(given, [1, 1, 1, -1])


def test_tensors_stay_on_their_kind_and_default_dtype():
    got = groups.grpo(torch.tensor([1, 0]), torch.tensor([0, 0]))
    assert got.dtype == torch.float32
    assert groups.grpo([1, 0], [0, 0]).dtype == np.float32
