"""What a wiggle shows, from numbers: right joint, sign, how late, and a robot or supervisor that went silent."""

import numpy as np
import pytest
import yaml
from ros_harness import SPEC

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.wiggle import judge

ROBOT = RobotSpec.from_dict(yaml.safe_load(SPEC.format(mode="jtc", timeout=0.0)))
TIMES = np.arange(0.0, 2.0, 0.01)


def out_and_back(times: np.ndarray) -> np.ndarray:
    """0.01 rad out and back within 1.2 s."""
    return 0.005 * (1.0 - np.cos(2.0 * np.pi * np.clip(times, 0.0, 1.2) / 1.2))


def seen(joint: int, gain: float = 1.0, late: float = 0.0, of: slice = slice(None)) -> np.ndarray:
    moved = np.zeros((len(TIMES), 3))
    moved[:, joint] = gain * out_and_back(TIMES - late)
    return np.column_stack([TIMES, moved])[of]


TOLD = np.column_stack([TIMES, out_and_back(TIMES)])


@pytest.mark.parametrize("late", [0.0, 0.03, 0.08])
def test_delay_is_that_of_the_joint_whatever_its_gain(late: float) -> None:
    found = judge(ROBOT, 0, 0.01, seen(0, gain=0.7, late=late), TOLD)
    assert found.problems == []
    assert found.dead_time == {"j0": pytest.approx(late, abs=0.0051)}


@pytest.mark.parametrize(
    ("rows", "told", "words"),
    [
        (seen(1), TOLD, "told to move j0, the robot moved j1"),
        (seen(0, gain=-1.0), TOLD, "j0 moves the other way"),
        (seen(0, gain=0.0), TOLD, "it moved by 0.0000"),
        (seen(0, gain=0.0), TOLD * (1.0, 0.1), "the supervisor sent it at most 0.0010: it braked"),
        (seen(0), TOLD[:0], "the supervisor sent nothing"),
        (seen(0, of=slice(0, 50)), TOLD[100:], "joint states came no more"),
    ],
)
def test_what_is_wrong_is_named(rows: np.ndarray, told: np.ndarray, words: str) -> None:
    (problem,) = judge(ROBOT, 0, 0.01, rows, told).problems
    assert words in problem
