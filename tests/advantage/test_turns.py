"""Dense turn sums, turn credit on awkward rows, the options of HAE, ArCHer and Digi-Q."""

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.advantage.hierarchy import OptionRows, hae, hae_auxiliary
from robot_rl.advantage.rows import RolloutRows
from robot_rl.advantage.turns import bilevel_gae, to_steps, to_turns, turn_gae
from robot_rl.advantage.zoo.temporal import n_step, retrace

X = np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]])
TURN = np.array([[0, 0, -1, 1], [1, 1, 2, -1]])
EXPECTED = {
    "sum": [[3, 4, 0], [0, 11, 7]],
    "mean": [[1.5, 4, 0], [0, 5.5, 7]],
    "max": [[2, 4, 0], [0, 6, 7]],
    "first": [[1, 4, 0], [0, 5, 7]],
    "last": [[2, 4, 0], [0, 6, 7]],
}


@pytest.mark.parametrize("reduce", list(EXPECTED))
def test_to_turns_reduces_each_turn_and_leaves_absent_ones_zero(reduce):
    np.testing.assert_allclose(to_turns(X, TURN, reduce), EXPECTED[reduce])
    tensor = to_turns(torch.from_numpy(X).requires_grad_(), torch.from_numpy(TURN), reduce)
    np.testing.assert_allclose(tensor.detach().numpy(), EXPECTED[reduce])
    tensor.sum().backward()
    wide = to_turns(X, TURN, reduce, turns=5)
    assert wide.shape == (2, 5)
    assert (wide[:, 3:] == 0).all()
    assert to_turns(X[0], TURN[0], reduce).shape == (2,)


def test_to_turns_negative_values_keep_their_maximum():
    np.testing.assert_array_equal(to_turns(-X, TURN, "max")[0], [-1, -4, 0])


def test_to_turns_wrong_call_is_refused():
    with pytest.raises(ValueError, match="reduce is 'median'"):
        to_turns(X, TURN, "median")
    with pytest.raises(ValueError, match="turn id 2 found, expected ids below turns = 2"):
        to_turns(X, TURN, turns=2)


def test_to_steps_is_the_way_back():
    expected = [[3, 3, 0, 4], [11, 11, 7, 0]]
    np.testing.assert_array_equal(to_steps(to_turns(X, TURN), TURN), expected)
    tensors = to_steps(torch.from_numpy(to_turns(X, TURN)), torch.from_numpy(TURN))
    np.testing.assert_array_equal(tensors.numpy(), expected)
    assert to_steps(np.zeros((2, 0)), np.full((2, 3), -1)).shape == (2, 3)


def rows() -> tuple[Any, Any, Any, Any, Any]:
    reward, value = np.array([1.0, 2, 3, 4, 5]), np.array([0.5, 0.4, 0.3, 0.2, 0.1])
    end = np.array([False, True, False, False, True])
    return reward, value, np.array([0, 0.6, 0, 0, 0.7]), np.array([False, True, False, False, False]), end


def test_turn_of_equal_ids_ends_with_its_episode():
    # One id for all rows: the end at row 1 still separates two turns. Second: 3 + 4 + 5 + 0.9 * 0.7 - 0.3 = 12.33.
    credit = turn_gae(RolloutRows(*rows()), np.zeros(5, int), gamma=0.9, gae_lambda=0.5)
    np.testing.assert_allclose(credit.advantage, [2.5, 2.5, 12.33, 12.33, 12.33])
    np.testing.assert_array_equal(credit.weight, [1, 0, 1, 0, 0])


def test_turn_rows_outside_any_turn_get_nothing():
    turn = np.array([0, 0, -1, 1, 1])
    credit = turn_gae(RolloutRows(*rows()), turn, gamma=0.9, gae_lambda=0.5)
    # 4 + 5 + 0.9 * 0.7 - 0.2
    np.testing.assert_allclose(credit.advantage, [2.5, 2.5, 0, 9.43, 9.43])
    tensors = turn_gae(RolloutRows(*map(torch.from_numpy, rows())), torch.from_numpy(turn), gamma=0.9, gae_lambda=0.5)
    np.testing.assert_allclose(tensors.advantage.numpy(), credit.advantage)
    grown = [torch.from_numpy(x) for x in (*rows(), turn)]
    grown[1].requires_grad_()
    assert turn_gae(RolloutRows(*grown[:-1]), grown[-1], gamma=0.9, gae_lambda=0.5).advantage.requires_grad


def test_an_end_on_a_row_outside_turns_is_that_of_the_turn_before():
    """As behind `compact`: nothing is bootstrapped behind a true end, and the turn of the next episode is its own."""
    reward, value, after = np.array([1.0, 2, 0, 4, 5]), np.array([0.5, 0.4, 0.3, 0.2, 0.1]), np.full(5, 0.7)
    end = np.array([False, False, True, False, True])
    for turn in (np.array([0, 0, -1, 1, 1]), np.array([0, 1, -1, 2, 2])):
        found = turn_gae(RolloutRows(reward, value, after, end, end), turn, gamma=0.9, gae_lambda=0.5)
        kept = turn >= 0
        columns = reward[kept], value[kept], after[kept], np.array([0, 1, 0, 1], bool), np.array([0, 1, 0, 1], bool)
        expected = turn_gae(RolloutRows(*columns), turn[kept], gamma=0.9, gae_lambda=0.5)
        np.testing.assert_allclose(found.advantage[kept], expected.advantage)
        np.testing.assert_allclose(found.target[kept], expected.target)


def test_turn_without_reward_stays_a_turn():
    reward, value, following, terminated, end = rows()
    credit = turn_gae(
        RolloutRows(0 * reward, value, following, terminated, end), np.array([0, 1, 2, 3, 3]), gamma=1.0, gae_lambda=1.0
    )
    assert credit.weight.sum() == 4
    # Row 2: 0 + V(row 3) - V(row 2), then the trace: 0.7 - 0.2.
    np.testing.assert_allclose(credit.advantage[2], (0.2 - 0.3) + (0.7 - 0.2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: turn_gae(RolloutRows(*rows()), np.full(5, -1)), "every row has turn -1"),
        (lambda: turn_gae(RolloutRows(*rows()), np.zeros(5, int), anchor="middle"), "anchor 'middle'"),
        (lambda: turn_gae(RolloutRows(*rows()), np.zeros(5, int), unit="per_hour"), "unit 'per_hour'"),
        (lambda: turn_gae(RolloutRows(*rows()), np.zeros(4, int)), r"turn has shape \(4,\)"),
        (
            lambda: turn_gae(RolloutRows(*rows()), np.arange(5), turn_reward=np.zeros(2)),
            r"turn_reward has shape \(2,\)",
        ),
        (lambda: bilevel_gae(RolloutRows(*rows()), np.arange(5), inner_gamma=2.0), "inner_gamma is 2.0"),
        (lambda: turn_gae(RolloutRows(*[x[:0] for x in rows()]), np.zeros(0, int)), "at least one row"),
        (lambda: n_step(RolloutRows(*rows())), "expected exactly one of them"),
        (lambda: n_step(RolloutRows(*rows()), n=0), "n is 0"),
        (lambda: retrace(RolloutRows(*rows()), np.zeros(5), probability=np.zeros(5)), "both given"),
        (lambda: hae(OptionRows(*_hae_rows()), switch_mode="paper"), "needs switched and switch_probability"),
        (lambda: hae(OptionRows(*_hae_rows()), switch_mode="other"), "switch_mode is 'other'"),
    ],
)
def test_turn_estimators_wrong_call_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_n_step_by_ticks_without_durations_is_by_decisions():
    for actual, expected in zip(
        n_step(RolloutRows(*rows()), n_ticks=2, gamma=0.9), n_step(RolloutRows(*rows()), n=2, gamma=0.9)
    ):
        np.testing.assert_allclose(actual, expected, atol=1e-12)


def _hae_rows():
    low, high, term = np.array([0.3, 0.4, 0.5]), np.array([0.2, 0.6, 0.9]), np.array([0.1, 0.2, 0.3])
    after_low, after_high = np.array([0, 0, 0.7]), np.array([0, 0, 0.8])
    end = np.array([False, False, True])
    return np.array([1.0, 0, 2]), low, high, term, after_low, after_high, ~end & end, end, np.array([0, 0, 1])


def test_hae_truncation_bootstraps_from_the_head_in_charge():
    going = hae(OptionRows(*_hae_rows(), running_at_cut=np.ones(3, bool)), gamma=0.9)
    over = hae(OptionRows(*_hae_rows()), gamma=0.9)
    current = hae(OptionRows(*_hae_rows()), gamma=0.9, release_bootstrap=True)
    # Last row: 2 + 0.9 * (V_lo' = 0.7 | V_hi' = 0.8 | the current V_lo = 0.5) - 0.5.
    np.testing.assert_allclose([x.low[2] for x in (going, over, current)], [2.13, 2.22, 1.95])
    # High level, second segment (one row, V_hi = 0.9): the release uses V_hi of its own start.
    np.testing.assert_allclose([x.high[2] for x in (going, over, current)], [1.73, 1.82, 1.91])


def test_hae_paper_switch_and_normalisation():
    paper = hae(
        OptionRows(*_hae_rows(), switched=np.array([1, 0, 1]), switch_probability=np.array([0.9, 0.2, 0.4])),
        switch_mode="paper",
    )
    # (q - beta) (V_hi - V_lo)
    np.testing.assert_allclose(paper.switch, [0.1 * -0.1, -0.2 * 0.2, 0.6 * 0.4])
    normed = hae(OptionRows(*_hae_rows()), norm=True)
    raw = hae(OptionRows(*_hae_rows()))
    np.testing.assert_allclose(normed.low, (raw.low - raw.low.mean()) / (raw.low.std() + 1e-8))
    starts = raw.high_weight > 0
    np.testing.assert_allclose(
        normed.high[starts], (raw.high[starts] - raw.high[starts].mean()) / (raw.high[starts].std() + 1e-8)
    )


def test_hae_auxiliary_rewards():
    keep, episode = np.array([True, True, False, True]), np.array([0, 0, 0, 1])
    out = hae_auxiliary(keep, episode, inconsistent=np.array([0, 1, 0, 0]), invalid_format=np.array([0, 0, 1, 0]))
    # Two of three turns kept: -0.3 * (2/3) / 2 each; then -0.3 for the contradiction and -0.1 for the format.
    np.testing.assert_allclose(out, [-0.1, -0.4, -0.1, -0.3])
