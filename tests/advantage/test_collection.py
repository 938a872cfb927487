"""Filters, rollout mechanisms, curricula, anchors and latent progress."""

import tracemalloc

import numpy as np
import pytest
import torch

from robot_rl.advantage import anchors, returns, turn_groups, weights
from robot_rl.advantage.zoo import actors, curriculum, progress, rollout, sequential
from robot_rl.advantage.zoo import turn_groups as zoo_turn_groups
from robot_rl.advantage.zoo import weights as zoo_weights
from tests.advantage import reference_groups as slow
from tests.advantage.ragged import both, ragged

close = np.testing.assert_allclose
nan = float("nan")


@pytest.mark.parametrize("seed", range(4))
def test_returns_and_positions_equal_loops(seed):
    b = ragged(seed)
    close(both(returns.discounted_return, b.reward, b.episode, gamma=0.9), slow.returns(b.reward, b.episode, 0.9))
    assert both(returns.position, b.episode).tolist() == slow.position(b.episode)
    own = both(returns.position, b.episode, b.actor)
    for t in range(len(own)):
        assert own[t] == sum((b.episode[s], b.actor[s]) == (b.episode[t], b.actor[t]) for s in range(t))
    r = np.nan_to_num(b.reward)
    got = both(returns.actor_return, r, b.episode, b.actor, gamma=0.8)
    close(got, slow.actor_returns(r, b.episode, b.actor, 0.8), atol=1e-12)


def test_returns_refuse_bad_rows():
    r = np.ones(3)
    with pytest.raises(ValueError, match="falls from 1 to 0 at row 2"):
        returns.discounted_return(r, np.array([0, 1, 0]), 0.9)
    with pytest.raises(ValueError, match=r"gamma is 1\.1"):
        returns.discounted_return(r, np.array([0, 1, 1]), 1.1)
    with pytest.raises(ValueError, match="episode has shape"):
        returns.discounted_return(r, np.array([0, 1]), 0.9)
    assert returns.discounted_return(np.zeros(0), np.zeros(0, int), 0.9).shape == (0,)
    assert returns.discounted_return(r, np.array([0, 0, 0]), 0.0).tolist() == [1, 1, 1]


def test_discount_stays_double_in_float32():
    # (1 - g^T)/(1 - g) = 1000·(1 - .999^20000); g rounded to float32 would be off by .0129.
    reward = np.ones(20_000, np.float32)
    got = returns.discounted_return(reward, np.zeros(20_000, int), 0.999)
    assert abs(float(got[0]) - (1 - 0.999**20_000) / 0.001) < 1e-4


def test_one_fragment_of_a_million_rows_needs_memory_of_the_order_of_its_rows():
    n = 1 << 20
    reward, episode, group = np.ones(n, np.float32), np.zeros(n, np.int32), np.zeros(1, int)
    returns.discounted_return(reward[:10], episode[:10], 0.99)  # compile outside the measurement
    tracemalloc.start()
    value = returns.discounted_return(reward, episode, 0.99)
    turn_groups.trloo(reward, episode, group, gamma=0.99)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert float(value[0]) == pytest.approx(100.0, rel=1e-5)
    assert peak < 40 * 8 * n


def test_reward_of_masked_rows_counts_and_returns_do_not_restart_there():
    # Row 1 is masked (written by someone else): its reward reaches row 0, and the return passes through it.
    reward, mask = np.array([0.0, 1.0, 2.0]), np.array([True, False, True])
    got = zoo_turn_groups.reinforce_pp(reward, np.zeros(3, int), mask=mask)
    # Returns 3 and 2 on the masked-in rows: whitened ±1/sqrt(2).
    close(got, [0.5**0.5, 0, -(0.5**0.5)], atol=1e-7)


def test_zero_reward_turn_stays_a_turn():
    # Rollout 0 has three turns, the second with reward 0: turn indices are not shifted.
    reward, episode = np.array([1.0, 0, 1, 0, 0, 0]), np.array([0, 0, 0, 1, 1, 1])
    close(turn_groups.trloo(reward, episode, np.array([0, 0])), [2, 1, 1, -2, -1, -1])


def test_equal_observations_of_different_tasks_are_not_pooled():
    reward, episode, anchor = np.array([1.0, 0.0, 5.0, 9.0]), np.arange(4), np.full(4, 77)
    got = turn_groups.gigpo(reward, episode, np.array([0, 0, 1, 1]), anchor)
    assert got.tolist() == [1, -1, -4, 4]  # twice ±.5 and twice ±2


def test_single_rollout_of_a_turn_is_zero_or_raw():
    reward, episode = np.array([1.0, 5.0, 2.0]), np.array([0, 0, 1])
    group = np.array([0, 0])
    assert turn_groups.trloo(reward, episode, group).tolist() == [4, 0, -4]
    assert turn_groups.trloo(reward, episode, group, singleton="raw").tolist() == [4, 5, -4]
    alone = np.array([1.0, 2.0])
    assert turn_groups.trloo(alone, np.array([0, 0]), np.array([3]), absent="zero").tolist() == [0, 0]
    assert turn_groups.trloo(alone, np.array([0, 0]), np.array([3]), absent="zero", singleton="raw").tolist() == [3, 2]
    with pytest.raises(ValueError, match="singleton is 'nan'"):
        turn_groups.trloo(reward, episode, group, singleton="nan")


def test_patched_trajectories_leave_the_statistics():
    reward, episode, group = np.array([1.0, 1, 0, 0, 9, 9]), np.array([0, 0, 1, 1, 2, 2]), np.array([4, 4, 4])
    match = np.array([1, 1, 1, 1, 0, 0], bool)
    got = zoo_turn_groups.ui_s1(reward, match, episode, group, patch_threshold=1)
    assert got[4:].tolist() == [0, 0]
    close(got[:4], zoo_turn_groups.ui_s1(reward[:4], match[:4], episode[:4], group[:2]))


# Anchors and progress ------------------------------------------------------------------------------------------------


def test_state_anchors_share_a_grid_cell():
    state = np.array([[0.1, 0.2], [0.1004, 0.1996], [0.2, 0.1], [0.1, 0.2]])
    key = both(anchors.state_anchor, state, tolerance=0.01)
    assert key[0] == key[1] == key[3] != key[2]
    assert (key != 0).all()
    assert len(set(anchors.state_anchor(np.random.default_rng(0).normal(size=(5000, 3))).tolist())) == 5000
    with pytest.raises(ValueError, match="row 1 is not finite"):
        anchors.state_anchor(np.array([[0.0], [nan]]))
    with pytest.raises(ValueError, match="tolerance is 0"):
        anchors.state_anchor(state, tolerance=0)
    with pytest.raises(ValueError, match="expected \\(turns"):
        anchors.state_anchor(state[0])


def test_text_anchors_ignore_case_and_space():
    a, b, c = anchors.text_anchor(["You are in  the Kitchen", "you are in the kitchen\n", "you are in the hall"])
    assert a == b != c


def test_clusters_do_not_depend_on_the_order_of_rows():
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(4, 16))
    embedding = centre[rng.integers(0, 4, 60)] + rng.normal(0, 0.05, (60, 16))
    group = rng.integers(0, 2, 60)
    key = both(anchors.cluster_anchor, embedding, group)
    order = rng.permutation(60)
    moved = anchors.cluster_anchor(embedding[order], group[order])
    back = np.empty(60, np.int64)
    back[order] = moved
    same = key[:, None] == key[None, :]
    assert (same == (back[:, None] == back[None, :])).all()
    assert not (same & (group[:, None] != group[None, :])).any()
    assert len(set(key.tolist())) == 8
    # A chain of links is one cluster, from either end.
    angle = np.deg2rad(np.arange(0, 100, 10.0))
    chain = np.stack([np.cos(angle), np.sin(angle)], 1)
    assert len(set(anchors.cluster_anchor(chain, np.zeros(10, int)).tolist())) == 1
    assert len(set(anchors.cluster_anchor(np.zeros((2, 3)), np.zeros(2, int)).tolist())) == 2
    with pytest.raises(ValueError, match="threshold is 2"):
        anchors.cluster_anchor(chain, np.zeros(10, int), threshold=2)
    with pytest.raises(ValueError, match="embedding has shape"):
        anchors.cluster_anchor(chain, np.zeros(3, int))


def test_latent_progress_scores_failures_by_their_distance():
    rng = np.random.default_rng(0)
    embedding = np.array([[0.0, 0], [0.1, 0], [5, 0], [1, 0], [2, 0], [4, 0], [9, 9], [0, 0], [7, 7]]) + 10
    success = np.array([1, 1, 1, 0, 0, 0, 1, 1, 0], bool)
    task = np.array([0, 0, 0, 0, 0, 0, 1, 2, 2])
    embedding[7] = 0  # an invalid embedding scores 0 even for a success
    got = both(progress.srpo_reward, embedding, success, task)
    # Standardised successes 0, .1 are one cluster, 5 is noise: centre 10.05; distances .95, 1.95, 3.95.
    unit = np.array([0, 1 / 3, 1])
    want = 0.6 / (1 + np.exp(-10 * (0.5 - unit)))
    close(got, [1, 1, 1, *want, 1, 0, 0])
    spread = rng.normal(size=(5, 2)) * 100
    centres = progress.success_centres(spread, min_samples=3)
    close(centres, spread.mean(axis=0, keepdims=True))
    with pytest.raises(ValueError, match="expected \\(episodes"):
        progress.srpo_reward(embedding[0], success, task)


def test_border_points_join_the_nearest_core():
    # Standardised by hand is awkward, so eps is wide: core points 0, .1, .2 (three neighbours), border .6, noise 5.
    x = np.array([[0.0], [0.1], [0.2], [0.6], [5.0]])
    scale = x.std()
    centres = progress.success_centres(x, eps=0.45 / scale, min_samples=3)
    close(centres, [[0.225]])


# Filters -------------------------------------------------------------------------------------------------------------


def test_void_turn_clears_its_whole_episode():
    void, episode, row_episode = np.array([0, 1, 0], bool), np.array([0, 0, 1]), np.array([0, 0, 1, 1])
    score = np.array([1.0, 0.5])
    kept, same = both(zoo_weights.void_filter, void, episode, row_episode, score)
    assert kept.tolist() == [False, False, True, True]
    assert same.tolist() == [1, 0.5]
    kept, dropped = zoo_weights.void_filter(
        void, episode, row_episode, score, mask=np.array([1, 1, 0, 1]), stats="drop"
    )
    assert kept.tolist() == [False, False, False, True]
    assert np.isnan(dropped[0])
    with pytest.raises(ValueError, match="stats is 'forget'"):
        zoo_weights.void_filter(void, episode, row_episode, score, stats="forget")


def test_group_filters_keep_what_is_informative():
    score = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 0.5, 9.0, nan])
    group = np.array([5, 5, 2, 2, 8, 8, 1, 2])
    assert both(weights.drop_zero_variance, score, group).tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    assert both(zoo_weights.variance_top_fraction, score, group).tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert zoo_weights.variance_top_fraction(score, group, 0.5).tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    with pytest.raises(ValueError, match="fraction is 0"):
        zoo_weights.variance_top_fraction(score, group, 0)


def test_duration_weights_ignore_masked_rows():
    got = zoo_weights.duration_weight(np.array([1.0, 3.0, nan]), mask=np.array([1, 1, 0], bool))
    assert got.tolist() == [0.5, 1.5, 0]
    assert zoo_weights.duration_weight(np.zeros(2)).tolist() == [0, 0]


def test_staleness_admits_by_version():
    assert both(zoo_weights.admit, np.array([3, 4, 5]), current_version=5, max_head_offpolicyness=1).tolist() == [
        0,
        1,
        1,
    ]
    assert zoo_weights.may_start_rollout(10, 5, 1, 8)
    assert not zoo_weights.may_start_rollout(10, 6, 1, 8)
    assert zoo_weights.may_start_rollout(10, 6, 1, 8, 1)
    with pytest.raises(ValueError, match="max_head_offpolicyness is -1"):
        zoo_weights.admit(np.zeros(1), 0, -1)


# Rollouts ------------------------------------------------------------------------------------------------------------


def test_branching_follows_its_probability_and_its_seed():
    gain = np.full(20_000, 0.2)
    got = rollout.branches(gain, generator=np.random.default_rng(0), weight=0.2)
    assert got.mean() == pytest.approx(0.54, abs=0.02)
    same = rollout.branches(torch.from_numpy(gain), generator=np.random.default_rng(0), weight=0.2)
    assert same.tolist() == got.tolist()
    assert rollout.branches(np.array([0.1, -0.1]), deterministic=True).tolist() == [True, False]
    assert rollout.branch_probability(np.array([9.0, -9.0])).tolist() == [1, 0]
    with pytest.raises(ValueError, match="generator is missing"):
        rollout.branches(gain)
    with pytest.raises(ValueError, match="vocabulary is 1"):
        rollout.branching_entropy(np.zeros((1, 1)), 1)


def test_branch_budget_is_spent_in_order_and_filled():
    assert rollout.branch_plan(np.array([1, 0, 1, 1], bool), 2) == ([1, 0, 1, 0], 0)
    assert rollout.branch_plan(torch.tensor([True]), 5, beam=4) == ([3], 2)
    with pytest.raises(ValueError, match="spare is -1"):
        rollout.branch_plan(np.ones(1), -1)


def test_shared_prefix_gets_the_mean_of_its_leaves():
    # Row 0 is above leaves 0, 1, 2; row 1 above 0, 1; row 2 above 2; row 3 above none.
    got = both(
        rollout.prefix_advantage,
        np.array([1.0, 2.0, 6.0]),
        np.array([0, 1, 2, 0, 1, 2]),
        np.array([0, 0, 0, 1, 1, 2]),
        n_rows=4,
    )
    assert got.tolist() == [3, 1.5, 6, 0]


def test_sampling_control():
    assert rollout.groups_to_draw(3, 8, 8) == 5
    assert rollout.groups_to_draw(3, 22, 8) == 2
    assert rollout.groups_to_draw(3, 24, 8) == rollout.groups_to_draw(9, 9, 8) == 0
    with pytest.raises(ValueError, match=r"max_factor is 0\.5"):
        rollout.groups_to_draw(0, 0, 8, max_factor=0.5)


def test_summary_fragments_share_one_entry_per_trial():
    # Trial 0 is cut into three fragments; the mean of the group is .5, not .25.
    score, trial, group = np.array([0.0, 0, 0, 1]), np.array([0, 0, 0, 1]), np.zeros(4, int)
    got = both(rollout.experimental_supo_advantage, score, trial, group, scale="none")
    assert got.tolist() == [-0.5, -0.5, -0.5, 0.5]


def test_zero_sum_outcome_is_negative_for_the_other_side():
    got = both(actors.zero_sum_outcome, np.array([1.0, -0.5]), np.array([0, 0, 1]), np.array([0, 1, 1]), player=0)
    assert got.tolist() == [1, -1, 0.5]


def test_turns_are_updated_from_the_last_to_the_first():
    for make in (np.array, torch.tensor):
        got = [(i, rows.tolist()) for i, rows in sequential.turn_batches(make([0, 2, 0, -1, 2]))]
        assert got == [(2, [1, 4]), (0, [0, 2])]
        assert list(sequential.turn_batches(make([0])[:0])) == []
    # The product is clamped to [.1, 10]: e^3 of the later turn becomes 10.
    weight = both(sequential.experimental_seeupo_weight, np.array([2.0, 2.0]), np.array([0.0, 3.0]), np.array([0, 0]))
    close(weight, [20, 2])


# Curricula -----------------------------------------------------------------------------------------------------------


def test_horizons_grow():
    assert [curriculum.scaling_inter_horizon(s, [5, 8, 12]) for s in (0, 99, 100, 250, 900)] == [5, 5, 8, 12, 12]
    assert [curriculum.tti_horizon(i) for i in (1, 2, 3, 4)] == [10, 20, 30, 30]
    steps = (0, 25, 50, 100)
    assert [curriculum.experimental_tcod_range(s, 100, 9) for s in steps] == [(0, 1), (0, 5), (0, 9), (0, 9)]
    assert curriculum.experimental_tcod_range(25, 100, 9, direction="backward") == (4, 9)
    for call in (
        lambda: curriculum.scaling_inter_horizon(0, []),
        lambda: curriculum.tti_horizon(0),
        lambda: curriculum.experimental_tcod_range(0, 100, 9, fraction=0),
        lambda: curriculum.experimental_tcod_range(0, 100, 9, direction="sideways"),
    ):
        with pytest.raises(ValueError, match="expected"):
            call()


def test_start_buffer_prefers_variance_and_restarts():
    buffer = curriculum.ExperimentalStartBuffer(2, probability=1.0, seed=0)
    assert buffer.sample() is None
    root = buffer.add("root", 0.5)
    child = buffer.add("child", 1.5, parent=root)
    drawn = [buffer.sample() for _ in range(2000)]
    assert sum(s is not None and s.key == child for s in drawn) / 2000 == pytest.approx(0.75, abs=0.04)
    assert next(s for s in drawn if s is not None and s.key == child).depth == 2
    buffer.add("third", 1.0)  # pushes out the root, the smallest variance
    assert len(buffer) == 2
    buffer.update(root, 9.0)
    buffer.update(child, 0.0)
    assert {s.key for s in (buffer.sample() for _ in range(20)) if s} == {2}
    copy = curriculum.ExperimentalStartBuffer(2, probability=1.0, seed=5)
    copy.load_state_dict(buffer.state_dict())
    assert [copy.sample() for _ in range(5)] == [buffer.sample() for _ in range(5)]
    assert curriculum.ExperimentalStartBuffer(1, probability=0.0).sample() is None
    buffer.update(2, 0.0)
    assert {s.key for s in (buffer.sample() for _ in range(50)) if s} == {1, 2}
    with pytest.raises(ValueError, match="capacity is 0"):
        curriculum.ExperimentalStartBuffer(0)
    with pytest.raises(ValueError, match="probability is 2"):
        curriculum.ExperimentalStartBuffer(1, probability=2)
