"""An environment that shows its goal: which picture, for how long, and a final observation of the old one."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from robot_rl.data.goal_pictures import SENTENCE
from robot_rl.loops.shown_goal import ShownGoal
from robot_rl.loops.stepping import begins_anew
from robot_rl.sim import interface
from robot_rl.types import EnvParts, IOSpec

STEPS, BYTES = 3, 30


def words(text: str) -> np.ndarray:
    return np.frombuffer(text.encode().ljust(BYTES, b"\0"), np.uint8)


class Asking(VectorEnv):
    """Two rows of three steps; "left" and "right" are asked in turn."""

    parts = EnvParts()

    def __init__(self) -> None:
        self.num_envs, self.metadata = 2, {"autoreset_mode": AutoresetMode.SAME_STEP}
        obs = {"state": ((1,), "float32"), "image.side": ((4, 4, 3), "uint8"), "instruction": ((BYTES,), "uint8")}
        self.io = IOSpec(obs, ("dx",), (-1.0,), (1.0,), ("1",), 10.0, obs_names=("x",))
        self.single_observation_space, self.single_action_space = interface.spaces(self.io)
        self.age, self.asked = np.zeros(2, int), 0

    def _obs(self) -> dict[str, np.ndarray]:
        said = np.stack([words(("left", "right")[(self.asked + i) % 2]) for i in range(2)])
        return {
            "state": np.zeros((2, 1), np.float32), "image.side": np.full((2, 4, 4, 3), 7, np.uint8), "instruction": said
        }  # fmt: skip

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.age[:] = 0
        return self._obs(), {}

    def state_dict(self) -> dict[str, Any]:
        return {"age": self.age.copy(), "asked": self.asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.age, self.asked = state["age"].copy(), state["asked"]

    def step(self, actions: Any) -> Any:
        self.age += 1
        final, done = self._obs(), self.age >= STEPS
        if done.any():
            self.age[:], self.asked = 0, self.asked + 1
        info = {"final_obs": final, "_final_obs": done}
        return self._obs(), np.zeros(2), np.zeros(2, bool), done, info


def pictures() -> dict[bytes, np.ndarray]:
    return {
        words("left").tobytes(): np.full((2, 4, 4, 3), 10, np.uint8),
        words("right").tobytes(): np.full((1, 4, 4, 3), 200, np.uint8),
    }


def seen(obs: Any) -> list[int]:
    return obs["image.side"][:, 0, 0, 0].tolist()


@pytest.mark.parametrize(
    ("mismatched", "first", "second"), [(False, [10, 200], [200, 10]), (True, [200, 10], [10, 200])]
)
def test_goal_stays_for_the_episode_and_follows_what_is_asked(
    mismatched: bool, first: list[int], second: list[int]
) -> None:
    env = ShownGoal(Asking(), pictures(), camera="side", mismatched=mismatched)
    obs, _ = env.reset(seed=0)
    for step in range(STEPS):
        assert seen(obs) == first, step
        assert bytes(obs["instruction"][0].tolist()).rstrip(b"\0").decode() == SENTENCE
        obs, _, _, _, info = env.step(np.zeros((2, 1)))
        assert seen(info["final_obs"]) == first  # of the episode that ended
    assert seen(obs) == second


def test_goal_that_is_shown_and_the_draws_to_come_are_kept() -> None:
    """A picture for each draw: what is shown after a resume is what an uninterrupted run shows."""
    many = {
        said: np.arange(50, dtype=np.uint8)[:, None, None, None] + 0 * shown[:1] for said, shown in pictures().items()
    }
    first = ShownGoal(Asking(), many, camera="side", seed=0)
    first.reset()
    obs, *_ = first.step(np.zeros((2, 1)))
    state = first.state_dict()
    second = ShownGoal(Asking(), many, camera="side", seed=1)
    second.reset()
    second.load_state_dict(state)
    shown = set(seen(obs))
    for _ in range(2 * STEPS):
        expected, *_ = first.step(np.zeros((2, 1)))
        found, *_ = second.step(np.zeros((2, 1)))
        assert seen(found) == seen(expected)
        shown |= set(seen(found))
    assert len(shown) >= 4


def test_a_state_that_is_not_exact_is_told_through_the_wrapper() -> None:
    env, inner = ShownGoal(Asking(), pictures(), camera="side"), {"exact": False}
    assert begins_anew(env, {"stepper": {"env": env.state_dict()}}) == ""
    env.inner.state_dict = lambda: inner  # as an engine says it whose state cannot be saved
    assert "new episodes" in begins_anew(env, {"stepper": {"env": env.state_dict()}})


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shows no 'image\.front'"):
        ShownGoal(Asking(), pictures(), camera="front")
    with pytest.raises(ValueError, match="one camera_size"):
        ShownGoal(Asking(), {key: x[:, :2, :2] for key, x in pictures().items()}, camera="side")
    env = ShownGoal(Asking(), {words("up").tobytes(): pictures()[words("left").tobytes()]}, camera="side")
    with pytest.raises(ValueError, match="no picture of 'left'"):
        env.reset(seed=0)
    with pytest.raises(ValueError, match="at least two goals"):
        ShownGoal(
            Asking(), {words("up").tobytes(): pictures()[words("left").tobytes()]}, camera="side", mismatched=True
        )
