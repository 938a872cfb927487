"""Reward programs: what they compute, what they may not, and that nothing of them is executed."""
# pyright: reportArgumentType=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from robot_rl.expression import Expression, ProgramError, observables
from robot_rl.policies.reward.program import ProgramReward
from robot_rl.types import IOSpec

WIDTHS = {"x": 1, "y": 1, "v": 3, "w": 3, "pair": 2}
COLUMNS = {
    "x": np.array([[1.0], [-2.0]]),
    "y": np.array([[0.5], [4.0]]),
    "v": np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0]]),
    "w": np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 5.0]]),
    "pair": np.array([[1.0, 2.0], [3.0, 4.0]]),
}


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("x + 2 * y", [2.0, 6.0]), ("-norm(v)", [-5.0, -2.0]), ("dot(v, w)", [7.0, 10.0]),
        ("v[0] - w[-1]", [2.0, -5.0]),
        ("norm(v[0:2])", [5.0, 0.0]), ("x if y > 1 else 7", [7.0, -2.0]), ("x > 0 and y < 1", [1.0, 0.0]),
        ("x > 5 or not y < 1", [0.0, 1.0]), ("0 < y < 1", [1.0, 0.0]), ("clip(x, -1, 1)", [1.0, -1.0]),
        ("min(x, y)", [0.5, -2.0]), ("max(v)", [4.0, 2.0]), ("mean(pair) ** 2", [2.25, 12.25]),
        ("x ** -1", [1.0, -0.5]),
        ("where(x > 0, 1, 0)", [1.0, 0.0]), ("d = norm(v)\ne = d * 2\ne - 1", [9.0, 3.0]), ("3", [3.0, 3.0]),
        ("exp(0) + abs(x) + sqrt(y * 2)", [3.0, 3 + np.sqrt(8)]), ("tanh(x)", np.tanh([1.0, -2.0])),
    ],
)  # fmt: skip
def test_program_computes(code: str, value: Any) -> None:
    np.testing.assert_allclose(Expression(code, WIDTHS)(COLUMNS), value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("__import__('os').system('true')", "may be called"), ("x.real", "Attribute is not allowed"),
        ("().__class__", "Attribute"), ("[i for i in v]", "ListComp"), ("lambda: 1", "Lambda"), ("'text'", "numbers"),
        ("open(x)", "may be called"), ("import os", "last line must be an expression"), ("x = 1", "last line"),
        ("while x: x", "last line"), ("x = 2\nx", "has a meaning"), ("norm = 2\nx", "has a meaning"),
        ("x ** y", "constants up to 8"), ("x ** 99", "constants up to 8"), ("9 ** 9 ** 9", "constants"),
        ("1e999", "numbers up to"), ("True", "numbers up to"), ("velocty + x", "no observable 'velocty'"),
        ("w2", "did you mean w"), ("v", "3 numbers, expected one"), ("v + pair", "do not fit"), ("v[3]", "do not fit"),
        ("v[2:1]", "do not fit"), ("v[x]", "whole numbers"), ("norm()", "takes 1 to 1"), ("norm(v=1)", "may be called"),
        ("x +", "cannot be read"), ("", "has 0 parts"), ("-" * 60 + "x", "nested deeper"), ("x" * 3000, "at most 2000"),
        ("(" * 900 + "x" + ")" * 900, "cannot be read|nested"), ("x | 1", "BinOp is not allowed"), ("x % 2", "BinOp"),
        ("f'{x}'", "JoinedStr"), ("x := 3", "cannot be read"), ("v[0:2:1]", "no step"),
        ("+".join(["x"] * 900), "parts"),
        ("(yield x)", "Yield"), ("x\0", "cannot be read"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_refused_by_name(code: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        Expression(code, WIDTHS)


IO = IOSpec(
    {"state": ((4,), "float32")}, ("dx", "grip-per"), (-1.0,) * 2, (1.0,) * 2, ("m", "m"), 10.0,
    obs_names=("tip_to_goal_x", "tip_to_goal_y", "open", "3d"),
)  # fmt: skip


def test_observables_are_components_vectors_actions_and_what_was_before() -> None:
    found = observables(IO.obs_names, 4, IO.action_names)
    assert found["tip_to_goal"] == ("state", [0, 1])
    assert found["open"] == ("state", [2])
    assert found["before_tip_to_goal_y"] == ("before", [1])
    assert found["action_grip_per"] == ("action", [1])
    assert found["action"] == ("action", [0, 1])
    assert found["state"][1] == [0, 1, 2, 3]
    assert "3d" not in found
    assert all(name.isidentifier() for name in found)


def test_reward_is_paid_of_the_successor_the_action_and_the_state_before() -> None:
    reward = ProgramReward("norm(before_tip_to_goal) - norm(tip_to_goal) - 0.1 * abs(action_dx)", keep=2.0)
    reward.bind(IO)
    one = np.array([[3.0, 4.0, 0, 0], [0, 1.0, 0, 0]], np.float32)
    two = np.array([[0.0, 4.0, 0, 0], [0, 3.0, 0, 0]], np.float32)
    both, action = np.ones(2, bool), np.array([[1.0, 0.0], [0.0, 1.0]])
    reward.start(both, {"state": one})
    seen = {"state": two, "action": action, "env_reward": np.array([0.5, 0.0])}
    np.testing.assert_allclose(reward.step(seen, ~both), [5 - 4 - 0.1 + 1.0, 1 - 3.0])
    saved = reward.state_dict()
    reward.start(np.array([True, False]), {"state": one})  # the first row begins anew, the second goes on from `two`
    np.testing.assert_allclose(reward.step(seen, ~both), [1.9, 0.0])
    reward.load_state_dict(saved)
    np.testing.assert_allclose(reward.step(seen, ~both), [0.9, 0.0])


def test_values_that_are_no_numbers_pay_nothing_and_stop_a_run_in_the_end() -> None:
    reward = ProgramReward("log(open)", limit=2.0)
    reward.bind(IO)
    state = np.zeros((100, 4), np.float32)
    state[:50, 2] = np.exp(-5.0)
    seen = {"state": state, "action": np.zeros((100, 2)), "env_reward": np.zeros(100)}
    reward.start(np.ones(100, bool), seen)
    np.testing.assert_allclose(reward.step(seen, np.zeros(100, bool)), [-2.0] * 50 + [0.0] * 50)
    for _ in range(8):
        reward.step(seen, np.zeros(100, bool))
    with pytest.raises(ProgramError, match="not finite"):
        reward.step(seen, np.zeros(100, bool))


def test_interfaces_without_what_is_needed_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no observables speed; there are: action, action_dx"):
        ProgramReward("1", only=["speed"]).bind(IO)
    with pytest.raises(ProgramError, match="no observable 'open'"):
        ProgramReward("open", only=["state"]).bind(IO)
    pictures = IOSpec({"image.front": ((8, 8, 3), "uint8")}, ("dx",), (-1.0,), (1.0,), ("m",), 10.0)
    with pytest.raises(ValueError, match="vector observation"):
        ProgramReward("1").bind(pictures)
    with pytest.raises(ValueError, match="limit"):
        ProgramReward("1", limit=0)
