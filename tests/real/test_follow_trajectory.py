"""The logic of a FollowJointTrajectory server: every code of control_msgs, hand-worked splines, take-over and end."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from robot_rl.real.core import follow_trajectory as follow
from robot_rl.real.core.follow_trajectory import FollowGoal, FollowOptions, TrajectoryFollower

REST = np.zeros(2)


def server(**options: Any) -> TrajectoryFollower:
    return TrajectoryFollower(("a", "b"), np.array([-1.0, -2.0]), np.array([1.0, 2.0]), FollowOptions(**options))


def goal(**changes: Any) -> FollowGoal:
    """b, a: to (0.4, -0.2) in 1 s, and back in another."""
    values = {"joints": ["b", "a"], "times": np.array([1.0, 2.0]), "positions": np.array([[0.4, -0.2], [0.0, 0.0]])}
    return FollowGoal(**{**values, **changes})


def test_positions_alone_are_straight_lines_in_the_robots_order() -> None:
    made = server()
    assert made.take(goal(), 10.0, REST) == (None, None)
    step = made.tick(10.5, REST, REST)
    assert step is not None
    assert step.position == pytest.approx([-0.1, 0.2])
    assert step.velocity == pytest.approx([-0.2, 0.4])
    assert step.error == pytest.approx([-0.1, 0.2])
    assert step.result is None


@pytest.mark.parametrize(
    ("bends", "middle", "speed"),
    [
        # from 0 to 1 within 1 s, at rest at both ends: 3 t^2 - 2 t^3, and 10 t^3 - 15 t^4 + 6 t^5, at t = 1/4
        ({"velocities": np.zeros((1, 2))}, 3 / 16 - 2 / 64, 6 / 4 - 6 / 16),
        (
            {"velocities": np.zeros((1, 2)), "accelerations": np.zeros((1, 2))},
            10 / 64 - 15 / 256 + 6 / 1024,
            30 / 16 - 60 / 64 + 30 / 256,
        ),
    ],
    ids=["cubic", "quintic"],
)
def test_velocities_and_accelerations_bend_the_way_as_worked_by_hand(bends: Any, middle: float, speed: float) -> None:
    made = server()
    made.take(goal(times=np.array([1.0]), positions=np.array([[1.0, 0.0]]), **bends), 0.0, REST)
    step = made.tick(0.25, REST, REST)
    assert step is not None
    assert step.position == pytest.approx([0.0, middle])
    assert step.velocity == pytest.approx([0.0, speed])


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"joints": ["b", "c"]}, follow.INVALID_JOINTS, "differs in a"),
        ({"joints": ["b", "b"]}, follow.INVALID_JOINTS, "differs in a"),
        ({"path_tolerance": {"c": 0.1}}, follow.INVALID_JOINTS, "of c, which is no joint"),
        ({"times": np.array([]), "positions": np.zeros((0, 2))}, follow.INVALID_GOAL, "no points"),
        ({"positions": np.zeros((2, 3))}, follow.INVALID_GOAL, r"positions are \[2, 3\]"),
        ({"positions": np.array([[np.nan, 0], [0, 0]])}, follow.INVALID_GOAL, "positions are"),
        ({"velocities": np.zeros((1, 2))}, follow.INVALID_GOAL, "velocities are"),
        ({"velocities": np.ones((2, 2))}, follow.INVALID_GOAL, "ends at rest"),
        ({"times": np.array([1.0, 1.0])}, follow.INVALID_GOAL, "times do not grow"),
        ({"times": np.array([-1.0, 1.0])}, follow.INVALID_GOAL, "times do not grow"),
        ({"goal_tolerance": {"a": -0.5}}, follow.INVALID_GOAL, "negative"),
        ({"goal_time": -1.0}, follow.INVALID_GOAL, "negative"),
        ({"positions": np.array([[0.0, 1.5], [0, 0]])}, follow.INVALID_GOAL, "a would leave -1 to 1 rad"),
        ({"times": np.array([0.0, 1.0])}, follow.INVALID_GOAL, "begins 0.4 rad from where b is commanded"),
        ({"times": np.array([0.0]), "positions": np.zeros((1, 2))}, follow.INVALID_GOAL, "only point is at time 0"),
        ({"start": 7.0}, follow.OLD_HEADER_TIMESTAMP, "ended 1 s ago"),
    ],
)
def test_a_bad_goal_is_rejected_and_the_running_one_goes_on(changes: Any, code: int, words: str) -> None:
    made = server()
    made.take(goal(times=np.array([9.0, 10.0]), positions=np.zeros((2, 2))), 1.0, REST)
    rejected, before = made.take(goal(**changes), 10.0, REST)
    assert rejected is not None
    assert (rejected.status, rejected.code) == ("rejected", code)
    assert re.search(words, rejected.text), rejected.text
    assert before is None
    assert made.busy


def test_a_goal_ends_where_it_should_at_rest() -> None:
    made = server(goal_tolerance=0.05, goal_time=0.5)
    made.take(goal(), 0.0, REST)
    late = made.tick(2.1, np.array([0.04, 0.0]), np.array([0.3, 0.0]))  # there, and still moving
    assert late is not None
    assert late.result is None
    assert late.position == pytest.approx([0.0, 0.0])
    done = made.tick(2.2, np.array([0.04, 0.0]), REST)
    assert done is not None
    assert done.result == ("succeeded", follow.SUCCESSFUL, "")
    assert made.tick(2.3, REST, REST) is None


def test_a_goal_that_is_not_reached_in_time_or_left_on_the_way_is_aborted() -> None:
    made = server(goal_tolerance=0.05, goal_time=0.5, path_tolerance=0.1)
    made.take(goal(), 0.0, REST)
    missed = [made.tick(now, np.array([0.0, 0.2]), REST) for now in (2.5, 2.51)]
    assert [step.result and step.result.code for step in missed if step] == [None, follow.GOAL_TOLERANCE_VIOLATED]
    made.take(goal(), 10.0, REST)
    left = made.tick(11.0, np.array([-0.2, 0.25]), REST)  # b is to be at .4
    assert left is not None
    assert left.result is not None
    assert left.result.code == follow.PATH_TOLERANCE_VIOLATED
    assert "b is 0.15 rad from the trajectory, at most 0.1" in left.result.text
    assert not made.busy


def test_tolerances_of_a_goal_replace_the_defaults_and_minus_one_erases_them() -> None:
    made = server(path_tolerance=0.1)
    made.take(goal(path_tolerance={"b": follow.ERASED, "a": 0.3}), 0.0, REST)
    free = made.tick(1.0, np.array([0.05, 9.0]), REST)  # a is .25 away, which .1 would not allow
    assert free is not None
    assert free.result is None
    far = made.tick(1.0, np.array([0.2, 0.0]), REST)
    assert far is not None
    assert far.result is not None
    assert far.result.text.startswith("a is 0.4 rad")


def test_a_new_goal_takes_over_without_a_jump_and_the_old_one_is_canceled() -> None:
    made = server()
    flat = {"velocities": np.zeros((2, 2))}
    made.take(goal(**flat), 0.0, REST)
    before = made.tick(0.5, REST, REST)
    rejected, ended = made.take(goal(**flat), 0.5, np.array([9.0, 9.0]))  # what runs is known better than that
    assert rejected is None
    assert ended is not None
    assert (ended.status, ended.text) == ("canceled", "a new goal took over")
    after = made.tick(0.5, REST, REST)
    assert before is not None
    assert after is not None
    assert after.position == pytest.approx(before.position)
    assert after.velocity == pytest.approx(before.velocity)
    assert made.stop() == ("canceled", follow.SUCCESSFUL, "canceled")
    assert made.tick(0.6, REST, REST) is None
    with pytest.raises(RuntimeError, match="no goal runs"):
        made.stop()


def test_a_stamp_in_the_past_skips_what_is_over_and_one_ahead_waits() -> None:
    made = server()
    made.take(goal(start=8.5), 10.0, np.array([-0.15, 0.3]))  # 1.5 s in: half of the way back is left
    step = made.tick(10.25, REST, REST)
    assert step is not None
    assert step.position == pytest.approx([-0.075, 0.15])
    made.take(goal(start=21.0), 20.0, REST)
    step = made.tick(22.0, REST, REST)
    assert step is not None
    assert step.position == pytest.approx([-0.2, 0.4])


def test_a_joint_that_turns_for_ever_takes_the_short_way() -> None:
    """Planners give angles within a turn, and so do some drivers; the joint may have gone round."""
    made = TrajectoryFollower(("a", "b"), np.array([-np.inf, -2.0]), np.array([np.inf, 2.0]), FollowOptions())
    ends = {"times": np.array([0.0, 1.0]), "positions": np.array([[0.0, 6.1 - 2 * np.pi], [0.4, 0.1]])}
    assert made.take(goal(**ends, path_tolerance={"a": 0.2}), 10.0, np.array([6.1, 0.0])) == (None, None)
    step = made.tick(10.5, np.array([6.1 - 2 * np.pi, 0.2]), REST)
    assert step is not None
    assert step.position == pytest.approx([0.5 * (6.1 + 2 * np.pi + 0.1), 0.2])
    assert step.error == pytest.approx([0.5 * (2 * np.pi + 0.1 - 6.1), 0.0])
    late = goal(start=0.0, times=np.array([1.0, 12.0]), positions=np.array([[0.0, -9.0], [0.0, 6.2]]))
    assert made.take(late, 11.0, np.zeros(2))[0] is None
    step = made.tick(12.0, np.array([6.2, 0.0]), REST)
    assert step is not None
    assert step.position[0] == pytest.approx(6.2, abs=0.2)
