"""Golden numbers of the group-relative estimators (specification items E6 to E12, E25, E28, E30, E33, E38, E39)."""

import numpy as np
import pytest

from robot_rl.advantage import groups, turn_groups
from robot_rl.advantage.normalise import normalise
from robot_rl.advantage.zoo import actors, progress
from robot_rl.advantage.zoo import groups as zoo_groups
from robot_rl.advantage.zoo import turn_groups as zoo_turn_groups
from robot_rl.advantage.zoo.shapley import shapley
from robot_rl.advantage.zoo.state import EmaScale, RoleBaseline
from tests.advantage.kind_cases import each_kind


@each_kind
def test_one_group_grpo_dr_grpo_rloo_opo(kind):
    # E6: mean 0.5, deviation sqrt(0.5 / 3) = 0.408248; leave-one-out = 4/3 of the centred score;
    # opo baseline (10 + 20·0.5 + 40·0.5) / 100 = 0.4.
    score, group = kind.x([1, 0, 0.5, 0.5]), kind.i([7, 7, 7, 7])
    kind.same(groups.grpo(score, group), [1.224742, -1.224742, 0, 0])
    kind.same(groups.group_advantage(score, group), [1.224742, -1.224742, 0, 0])
    kind.same(groups.dr_grpo(score, group), [0.5, -0.5, 0, 0])
    kind.same(groups.rloo(score, group), [0.666667, -0.666667, 0, 0])
    kind.same(zoo_groups.loop(score, group), [0.666667, -0.666667, 0, 0])
    kind.same(zoo_groups.opo(score, group, kind.x([10, 30, 20, 40])), [0.6, -0.4, 0.1, 0.1])
    kind.same(zoo_groups.experimental_flow_grpo(score, group), [1.224742, -1.224742, 0, 0])


@each_kind
def test_trloo_compares_the_same_turn_of_other_rollouts(kind):
    # E6: returns of turn 0: .7, .2, .6 and of turn 1: 1, .4; minus the mean of the others.
    reward, episode = kind.x([0.2, 1, 0, 0.4, 0.6]), kind.i([0, 0, 1, 1, 2])
    got = turn_groups.trloo(reward, episode, kind.i([3, 3, 3]), gamma=0.5)
    kind.same(got, [0.3, 0.6, -0.45, -0.6, 0.15])


@each_kind
def test_lite_ppo_divides_by_the_deviation_of_the_raw_batch(kind):
    # E7
    score, group = kind.x([1, 0, 1, 1, 0, 0, 0.5, 0]), kind.i([0, 0, 0, 0, 1, 1, 1, 1])
    want = [0.504524, -1.513572, 0.504524, 0.504524, -0.252262, -0.252262, 0.756786, -0.252262]
    kind.same(groups.lite_ppo(score, group), want)


@each_kind
def test_ema_grpo_updates_before_or_after_use(kind):
    # E8: batch 1 sets m1 = .5, m2 = .375; batch 2 moves them to .48 and .3495.
    one, two = kind.x([1, 0, 0.5, 0.5]), kind.x([0.2, 0.2, 0.2, 0.6])
    group, task = kind.i([0, 0, 0, 0]), kind.i([4, 4, 4, 4])
    state = EmaScale(0.9)
    kind.same(state.advantage(one, group, task), [1.41421, -1.41421, 0, 0])
    kind.near(np.array(state.moments(4)), [0.5, 0.375])
    kind.same(state.advantage(two, group, task), [-0.289763, -0.289763, -0.289763, 0.869289])
    kind.near(np.array(state.moments(4)), [0.48, 0.3495])
    late = EmaScale(0.9, order="use_then_update")
    kind.same(late.advantage(one, group, task), [1.41421, -1.41421, 0, 0])
    kind.same(late.advantage(two, group, task), [-0.282842, -0.282842, -0.282842, 0.848526])


@each_kind
def test_gigpo_adds_episode_and_anchor_parts(kind):
    # E9: states a b c | a b b | a d c.
    reward = kind.x([0, 0, 1, 0, 0, 0, 0, 0, 0.5])
    episode, anchor = kind.i([0, 0, 0, 1, 1, 1, 2, 2, 2]), kind.i([1, 2, 3, 1, 2, 2, 1, 4, 3])
    group = kind.i([5, 5, 5])
    kind.same(
        turn_groups.gigpo(reward, episode, group, anchor),
        [0.95125, 1.133333, 0.75, -0.95125, -0.816667, -0.816667, 0, 0, -0.25],
    )
    kind.same(
        turn_groups.gigpo(reward, episode, group, anchor, mode="mean_std_norm"),
        [1.999996, 2.154696, 1.707103, -1.999996, -1.577347, -1.577347, 0, 0, -0.707105],
    )
    # omega 0 leaves the episode part, a constant per episode.
    kind.same(turn_groups.gigpo(reward, episode, group, anchor, omega=0.0), [0.5] * 3 + [-0.5] * 3 + [0.0] * 3)


@each_kind
def test_mapo_mixes_turn_and_batch_parts(kind):
    # E10
    reward, episode, group = kind.x([0.2, 0.4, 0.6, 0, 0.2, 0.1]), kind.i([0, 0, 0, 1, 1, 1]), kind.i([0, 0])
    kind.same(
        turn_groups.mapo(reward, episode, group, gamma=0.9, experimental_alpha=0.5),
        [0.238237, 0.6995, 1.160763, -0.930132, -0.468868, -0.6995],
    )
    kind.same(
        turn_groups.mapo(reward, episode, group, gamma=0.9, batch_on="returns"),
        [1.005887, 0.869366, 0.431472, -0.71224, -0.67489, -0.919595],
    )
    part = [0.707106, 0.707105, 0.707105]
    kind.same(turn_groups.mapo(reward, episode, group, experimental_alpha=1.0), part + [-x for x in part])
    batch = [-0.230632, 0.691895, 1.614422, -1.153159, -0.230632, -0.691895]
    kind.same(turn_groups.mapo(reward, episode, group, experimental_alpha=0.0), batch)


@each_kind
def test_agent_wise_has_a_baseline_per_actor(kind):
    # E11: actor 0 mean .466667, deviation .503322; actor 1 mean .666667, deviation .57735.
    score, group = kind.x([1, 0, 0.4]), kind.i([0, 0, 0])
    episode, actor = kind.i([0, 0, 0, 1, 1, 2]), kind.i([0, 1, 1, 0, 1, 0])
    want = [1.059624, 0.577349, 0.577349, -0.927171, -1.154699, -0.132453]
    kind.same(actors.agent_wise(score, group, episode, actor), want)
    globally = groups.grpo(score, group)[episode]
    kind.same(globally, [1.059624, 1.059624, 1.059624, -0.927171, -0.927171, -0.132453])
    kind.near(actors.amplification(score, group, episode, actor, 2)[1:], [1.552632])


@each_kind
def test_role_baseline_follows_its_outcomes(kind):
    # E12: b before each sample 0, .05, .0975; at the end .042625.
    state = RoleBaseline(0.95)
    ids = kind.i([0, 0, 0])
    kind.same(state.advantage(kind.x([1, 1, -1]), role=ids, game=ids), [1, 0.95, -1.0975])
    kind.near(np.array(state.baseline(role=0, game_or_process=0)), 0.042625)
    kind.near(actors.own_turn_weight(kind.i([0, 0, 0]), kind.i([1, 1, 1]), 0.9), [0.81, 0.9, 1])


@each_kind
def test_srpo_reward_from_distances(kind):
    # E25: d' = 0, 1/3, 1; equal distances give .6·sigmoid(0) = .3.
    task = kind.i([2, 2, 2])
    kind.same(progress.distance_reward(kind.x([2, 3, 5]), task), [0.595984, 0.504679, 0.004016])
    kind.same(progress.distance_reward(kind.x([4, 4, 4]), task), [0.3, 0.3, 0.3])


@each_kind
def test_ui_s1_return_restarts_at_a_patched_step(kind):
    # E28
    got = zoo_turn_groups.ui_s1_return(kind.x([1, 1, 0.2, 1, 1]), kind.b([1, 1, 0, 1, 1]), kind.i([0] * 5), gamma=0.5)
    kind.same(got, [1.5, 1, 0.2, 1.5, 1])


@each_kind
def test_spo_is_the_mean_win_rate(kind):
    # E30; the diagonal must not matter.
    nan = float("nan")
    kind.same(zoo_groups.spo(kind.x([[nan, 1, 1], [0, nan, 0.5], [0, 0.5, nan]])), [1, 0.25, 0.25])
    kind.same(zoo_groups.spo_from_score(kind.x([3, 1, 1]), kind.i([0, 0, 0])), [1, 0.25, 0.25])


@each_kind
def test_normalise_defaults(kind):
    # E33
    kind.same(normalise(kind.x([0.7]), kind.i([0]))[0], [0])
    flat = normalise(kind.x([0.3, 0.3 + 1e-7, 0.3]), kind.i([0, 0, 0]))[0]
    assert flat.tolist() == [0, 0, 0]
    out, mask = normalise(kind.x([1, float("nan"), 0, 0.5]), kind.i([0, 0, 0, 0]))
    kind.same(out, [0.999998, 0, -0.999998, 0])
    assert mask.tolist() == [True, False, True, True]
    if kind.precision == "float64":  # in float32 0.5002 itself is off by 1e-8, 1e-5 of the result after division
        kind.same(normalise(kind.x([0.5, 0.5002]), kind.i([0, 0]))[0], [-0.0999, 0.0999])
    else:
        got = normalise(kind.x([0.5, 0.5002]), kind.i([0, 0]))[0]
        np.testing.assert_allclose(np.asarray(got), [-0.0999, 0.0999], rtol=3e-4)


@each_kind
def test_shapley_values_of_three_facts(kind):
    # E38: subsets in binary order: none, 0, 1, 01, 2, 02, 12, 012.
    value = kind.x([0.1, 0.3, 0.2, 0.6, 0.1, 0.3, 0.4, 0.9])
    phi = shapley(value)
    kind.same(phi, [0.333333, 0.333333, 0.133333])
    kind.near(phi.sum(), 0.8)
    kind.near(phi.sum() - (value[7] - value[0]), 0.0)


@each_kind
def test_otb_subtracts_the_optimal_baseline_of_a_position(kind):
    # E39: baselines .625/1.75 = .357143 and 1.175/3.25 = .361538.
    returns, weight = kind.x([1, 0.5, 0, 0.2, 0.5, 0.5]), kind.x([0.5, 1, 1, 1.5, 0.25, 0.75])
    got = zoo_turn_groups.otb(returns, weight, kind.i([0, 0, 1, 1, 2, 2]), kind.i([0, 0, 0]))
    kind.same(got, [0.642857, 0.138462, -0.357143, -0.161538, 0.142857, 0.138462])


def test_remax_and_gpg_and_pass_k_by_hand():
    score, group = np.array([1.0, 0.0, 0.5, 0.2]), np.array([0, 0, 0, 1])
    # Greedy rollout of group 0 has 0.5; group 1 has none.
    assert zoo_groups.remax(score, group, np.array([0, 0, 1, 0], bool)).tolist() == [0.5, -0.5, 0.0, 0.0]
    # Three of four scores are non-zero: alpha = 4/3; the mean of group 0 is 0.5; f = 2.
    np.testing.assert_allclose(zoo_groups.gpg(score, group, factor=2.0), [1 / 3, -1 / 3, 0, 0], atol=1e-12)
    np.testing.assert_allclose(zoo_groups.gpg(score, group, alpha=3.0), [1.5, -1.5, 0, 0])
    # Best 1, second 0.5; the deviation of (1, 0, .5) is .5.
    np.testing.assert_allclose(zoo_groups.pass_k(score, group), [0.5, 0, 0, 0])
    np.testing.assert_allclose(zoo_groups.pass_k(score, group, scale="std"), [0.5 / 0.500001, 0, 0, 0])
    assert zoo_groups.pass_k(np.array([1.0, 1.0, 0.0]), np.array([0, 0, 0])).tolist() == [0, 0, 0]


@pytest.mark.parametrize("scale_of", ["raw", "centered"])
def test_lite_ppo_leaves_episodes_of_no_group_out_of_the_deviation(scale_of):
    score, group = np.array([0, 1, 0, 1.0, 5, 6, 7]), np.array([0, 0, 1, 1, -1, -1, -1])
    got = groups.lite_ppo(score, group, scale_of=scale_of)
    np.testing.assert_allclose(got[:4], groups.lite_ppo(score[:4], group[:4], scale_of=scale_of))
    assert (got[4:] == 0).all()
