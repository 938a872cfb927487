"""When a success pays and ends an episode."""

import numpy as np
import pytest

from robot_rl.human.options import SessionOptions
from tests.human.line_world import LineEnv
from tests.human.test_loop import build, episode


class Seen(LineEnv):
    """Success is seen after these numbers of steps, wherever the robot is."""

    def __init__(self, *at, ends=False):
        super().__init__()
        self.at, self.ends = at, ends

    def step(self, action):
        obs, reward, _terminated, truncated, info = super().step(action)
        info["success"] = np.array([self.time in self.at or (bool(truncated[0]) and self.limit in self.at)])
        return obs, reward, info["success"] & self.ends, truncated, info


@pytest.mark.parametrize(
    ("at", "ends", "length"),
    [
        ((3, 4, 5, 6, 7, 9, *range(12, 31)), False, 17),  # five steps are 0.4 s from the first to the last
        (range(27, 31), False, 30),  # the time is over, and it is one
        ((8,), True, 8),  # the world ended the episode: nothing can last behind that
    ],
)
def test_a_success_of_training_has_to_last(tmp_path, at, ends, length):
    options = SessionOptions(learning_starts=100, success_s=0.5)
    loop = build(tmp_path, None, env=Seen(*at, ends=ends), options=options)
    facts = loop._episode(demo=False)
    steps = episode(loop)
    assert facts is not None
    assert facts.success
    assert [step.reward_task for step in steps] == [0.0] * (length - 1) + [1.0]
    assert steps[-1].terminated


def test_a_success_that_does_not_last_is_none(tmp_path):
    loop = build(tmp_path, None, env=Seen(5, 6, 7, 20), options=SessionOptions(learning_starts=100, success_s=0.5))
    facts = loop._episode(demo=False)
    assert facts is not None
    assert not facts.success
    assert len(episode(loop)) == 30
