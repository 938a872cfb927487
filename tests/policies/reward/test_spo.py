"""Self-play rewards by hand."""

import numpy as np
import pytest

from robot_rl.policies.reward.spo import SelfPlayReward


def larger(a: float, b: float) -> float:
    return 0.5 if a == b else float(a > b)


def test_first_trajectory_is_a_draw():
    np.testing.assert_array_equal(SelfPlayReward(larger)(3.0, 4), [0.5] * 4)


def test_reward_is_the_win_rate_against_the_queue():
    reward = SelfPlayReward(larger)
    for value in (1.0, 2.0, 4.0):
        reward(value, 1)
    assert reward(3.0, 1)[0] == pytest.approx(2 / 3)  # beats 1 and 2, loses to 4
    assert reward(2.0, 1)[0] == pytest.approx((1 + 0.5) / 4)  # beats 1, ties 2, loses to 4 and 3


def test_queue_forgets_the_oldest():
    reward = SelfPlayReward(larger, size=2)
    for value in (9.0, 1.0):
        reward(value, 1)
    assert reward(2.0, 1)[0] == 1.0  # only the 1 is left beside it
    assert list(reward.queue) == [1.0, 2.0]


def test_single_member_queue_always_draws():
    reward = SelfPlayReward(larger, size=1)
    assert [reward(x, 1)[0] for x in (1.0, 5.0)] == [0.5, 0.5]


def test_intransitive_preferences_are_welcome():
    """Rock, paper, scissors: each beats one of the two others."""
    reward = SelfPlayReward(lambda a, b: {(0, 2): 1.0, (2, 1): 1.0, (1, 0): 1.0}.get((a, b), 0.5 if a == b else 0.0))
    reward(0, 1)
    reward(1, 1)
    assert reward(2, 1)[0] == 0.5  # beats 1, loses to 0


def test_reward_may_come_at_the_end_only():
    reward = SelfPlayReward(larger, spread="last")
    reward(1.0, 3)
    np.testing.assert_array_equal(reward(2.0, 3), [0.0, 0.0, 1.0])


def test_rater_outside_probabilities_is_refused():
    reward = SelfPlayReward(lambda a, b: 2.0)
    reward(0, 1)
    with pytest.raises(ValueError, match=r"probabilities in \[0, 1\]"):
        reward(1, 1)
