"""One test per trap seen in other libraries, for everything that runs through time. Numbers are those of the list."""

import numpy as np
import pytest

from robot_rl.advantage import dense_ids, from_vector_rollout, make_batch, rollout_gae, turn_gae
from robot_rl.advantage.clock import compact
from robot_rl.advantage.gae import gae
from robot_rl.advantage.pipeline import Pipeline, Stage
from robot_rl.advantage.rows import RolloutRows
from robot_rl.advantage.zoo.temporal import monte_carlo, vtrace


def one_step_rows(value=(1.0, 100.0), final=0.5):
    """Two fragments of one row each behind one another; the first is truncated."""
    reward, v = np.zeros(2), np.array(value)
    nothing, ends = np.zeros(2, bool), np.ones(2, bool)
    return reward, v, np.array([final, 0.0]), nothing, ends


def test_01_truncation_is_not_termination():
    # Constant reward 1 under a time limit: with V = 1 / (1 - gamma) every advantage is 0, at the cut as well.
    value = np.full(20, 10.0)
    end = np.arange(20) == 19
    columns = (np.ones(20), value, value)
    np.testing.assert_allclose(rollout_gae(RolloutRows(*columns, end & False, end), gamma=0.9)[0], 0, atol=1e-12)
    assert rollout_gae(RolloutRows(*columns, end, end), gamma=0.9)[0][-1] == pytest.approx(-9.0)


def test_02_bootstrap_uses_the_successor_not_the_last_state():
    # 0 + 0.9 * 0.5 - 1, not 0.9 * 1 - 1.
    assert rollout_gae(RolloutRows(*one_step_rows()), gamma=0.9)[0][0] == pytest.approx(-0.55)


def test_03_longest_row_of_a_padded_batch_is_not_special():
    reward, value = np.ones((3, 2)), np.zeros((3, 2))
    valid = np.array([[1, 1], [1, 1], [1, 0]], bool)
    end = np.array([[0, 0], [0, 1], [1, 0]], bool)
    short = rollout_gae(RolloutRows(reward, value, value, end, end, valid=valid), gamma=1.0, gae_lambda=1.0)[1]
    np.testing.assert_array_equal(short, [[3, 2], [2, 1], [1, 0]])


def test_04_truncated_row_keeps_its_gradient():
    batch = make_batch(
        np.ones(2),
        np.zeros(2, bool),
        np.array([False, True]),
        np.zeros(2, int),
        value=np.zeros(2),
        next_value=np.ones(2),
    )
    assert batch.steps.loss_mask.all()
    assert Pipeline([Stage("gae")])(batch).mask.all()


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_05_final_observation_is_kept_under_autoreset(autoreset):
    truncated = np.array([[True], [False], [False]])
    final = np.array([[5.0], [np.nan], [np.nan]])
    batch = from_vector_rollout(
        np.zeros((3, 1)), np.zeros((3, 1)), truncated & False, truncated, final, np.ones(1), autoreset=autoreset
    )
    assert batch.steps.next_value is not None
    assert batch.steps.next_value[0] == 5.0
    assert len(batch) == (3 if autoreset == "same_step" else 2)


def test_06_gae_does_not_leak_across_boundaries_in_a_batch():
    near, far = one_step_rows(), one_step_rows(value=(1.0, -1e6))
    assert rollout_gae(RolloutRows(*near))[0][0] == rollout_gae(RolloutRows(*far))[0][0]


def test_07_vtrace_does_not_leak_either():
    # V = (1, 100), r = 0, gamma = 1, truncated with V' = 0.5: row 0 is 0.5 - 1, unaffected by 100.
    advantage, target = vtrace(RolloutRows(*one_step_rows()), np.zeros(2), gamma=1.0)
    assert (advantage[0], target[0]) == (-0.5, 0.5)


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.0, 0.95), (0.99, 0.0), (1e-9, 0.95), (0.99, 1e-9), (0.0, 0.0)])
def test_08_vanishing_coefficients_work(gamma, gae_lambda):
    end = np.array([False, True])
    advantage = rollout_gae(
        RolloutRows(np.array([1.0, 2]), np.array([3.0, 5]), np.zeros(2), end, end), gamma=gamma, gae_lambda=gae_lambda
    )
    # delta_0 = 1 + 5 gamma - 3, delta_1 = 2 - 5.
    expected = [1 + 5 * gamma - 3 - 3 * gamma * gae_lambda, -3]
    np.testing.assert_allclose(advantage[0], expected, atol=1e-12)


def observation_in_the_middle(reward):
    return make_batch(
        np.array(reward, float),
        np.array([0, 0, 1], bool),
        np.zeros(3, bool),
        np.zeros(3, int),
        clock=np.array([1, 0, 1], bool),
        value=np.array([0.5, 77.0, 0.25]),
    )


def test_09_reward_on_a_masked_row_counts():
    credit = Pipeline([Stage("gae", options={"gamma": 1.0, "gae_lambda": 1.0})])(observation_in_the_middle([0, 2, 1]))
    np.testing.assert_allclose(credit.returns[[0, 2]], [3, 1])


def test_10_returns_are_not_reset_at_interior_masked_rows():
    small = compact(observation_in_the_middle([0, 0, 1])).batch.steps
    rows = (small.reward, None, None, small.terminated, small.boundary)
    np.testing.assert_allclose(monte_carlo(RolloutRows(*rows), gamma=1.0)[1], [1, 1])


def test_11_values_are_not_zeroed_at_interior_masked_rows():
    credit = Pipeline([Stage("gae", options={"gamma": 1.0, "gae_lambda": 0.0})])(observation_in_the_middle([0, 0, 0]))
    # The decision before the observation looks at the value of the next decision: 0.25 - 0.5.
    assert credit.advantage[0] == -0.25


def test_12_a_turn_without_reward_stays_a_turn():
    end = np.array([False, False, True])
    credit = turn_gae(
        RolloutRows(np.array([0, 0, 1.0]), np.zeros(3), np.zeros(3), end, end),
        np.array([0, 1, 2]),
        gamma=0.5,
        gae_lambda=1.0,
    )
    np.testing.assert_allclose(credit.advantage, [0.25, 0.5, 1])


def test_13_the_last_row_may_have_no_reward():
    end = np.array([False, False, True])
    credit = turn_gae(
        RolloutRows(np.array([0, 1.0, 0]), np.zeros(3), np.zeros(3), end, end),
        np.array([0, 1, 1]),
        gamma=0.5,
        gae_lambda=1.0,
    )
    np.testing.assert_allclose(credit.advantage, [0.5, 1, 1])
    np.testing.assert_array_equal(credit.weight, [1, 1, 0])


def test_17_large_scattered_and_negative_ids_are_refused_or_factorised():
    raw = np.array([10**9, 10**9, -7])
    ends = np.array([False, True, True])
    with pytest.raises(ValueError, match="factorise with dense_ids"):
        make_batch(np.zeros(3), ends, ends & False, raw)
    np.testing.assert_array_equal(make_batch(np.zeros(3), ends, ends & False, dense_ids(raw)).episodes.end, [1, 2])


def test_26_gamma_given_to_a_group_estimator_is_refused_not_ignored():
    batch = make_batch(
        np.ones(2), np.ones(2, bool), np.zeros(2, bool), np.array([0, 1]), episode={"group_id": np.zeros(2, int)}
    )
    with pytest.raises(TypeError, match="gamma"):
        Pipeline([Stage("grpo", options={"gamma": 0.9})])(batch)


def test_30_a_human_take_over_is_no_boundary():
    batch = make_batch(
        np.zeros(3),
        np.array([0, 0, 1], bool),
        np.zeros(3, bool),
        np.zeros(3, int),
        own=np.array([1, 0, 1], bool),
        value=np.array([0.5, 0.25, 0.0]),
    )
    np.testing.assert_array_equal(batch.steps.boundary, [0, 0, 1])
    # The value passes into the human row, the trace does not: 0.25 - 0.5.
    credit = Pipeline([Stage("gae", options={"gamma": 1.0, "gae_lambda": 1.0})])(batch)
    assert credit.advantage[0] == -0.25
    np.testing.assert_array_equal(credit.mask, [1, 0, 1])


def test_31_gamma_stays_in_double():
    # gamma rounded to float32 alone costs 0.0129 here.
    steps = 20_000
    ones, end = np.ones(steps, np.float32), np.arange(steps) == steps - 1
    exact = (1 - 0.999**steps) / (1 - 0.999)
    for shape in ((steps,), (steps, 1)):
        columns = [x.reshape(shape) for x in (ones, 0 * ones, 0 * ones, end, end)]
        assert abs(float(rollout_gae(RolloutRows(*columns), gamma=0.999, gae_lambda=1.0)[1].ravel()[0]) - exact) < 1e-4


def test_dense_form_terminal_successor_may_be_nan():
    assert gae(np.ones(1), np.zeros(1), np.zeros(1), np.array([np.nan]), np.zeros(1))[0][0] == 1
