"""What `robot-rl check` says of the episodes that a scripted expert loses."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from robot_rl.verbs.check import _Stages


def test_failed_episodes_are_told_by_where_they_failed() -> None:
    """Four copies of three steps: lost before the object, at it, on the way, and won."""
    held = np.array([[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], bool)
    reached = np.array([[0, 1, 1, 1]] * 3, bool)
    step = iter(range(3))
    now: dict[str, Any] = {}
    env = SimpleNamespace(num_envs=4, parts=SimpleNamespace(stages=lambda: now))
    stages = _Stages(env, 4)
    for k in step:
        now.update(reached=reached[k], held=held[k])
        over = np.full(4, k == 2)
        row: Any = SimpleNamespace(
            terminated=np.zeros(4, bool), truncated=over, info={"success": np.array([0, 0, 0, k == 2], bool)}
        )
        if k == 2:  # after an episode's end the view is of the next
            now.update(reached=np.zeros(4, bool), held=np.zeros(4, bool))
        stages(row)
    all_over = np.ones(4, bool)
    more: Any = SimpleNamespace(terminated=all_over, truncated=~all_over, info={"success": ~all_over})
    stages(more)  # one more a copy than are counted
    told = stages.tell(1, 4)
    assert "succeeds in 1 of 4 episodes" in told
    assert "did not reach the object in 1, reached it and did not hold it in 1" in told
    assert "held it to the end, short of the goal in 1" in told  # its last view before the end
    assert "Where to look: it lies at the edge" in told
