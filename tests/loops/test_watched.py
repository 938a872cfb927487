"""A reward beside the environment: true successors, hidden pictures, and a run that continues exactly."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from robot_rl.loops.stepping import Stepper
from robot_rl.loops.watched import Watched
from robot_rl.policies.reward.program import ProgramReward
from robot_rl.sim import interface
from robot_rl.types import EnvParts, IOSpec

STEPS = 4


class Line(VectorEnv):
    """x moves by the action; an episode has four steps; the reward of its own is 7."""

    parts = EnvParts(saves=True)

    def __init__(self, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> None:
        self.num_envs, self.metadata = 2, {"autoreset_mode": mode}
        obs = {"state": ((1,), "float32"), "image.front": ((8, 8, 3), "uint8")}
        self.io = IOSpec(obs, ("dx",), (-1.0,), (1.0,), ("1",), 10.0, obs_names=("x",))
        self.single_observation_space, self.single_action_space = interface.spaces(self.io)
        self.x, self.age = np.zeros(2), np.zeros(2, int)

    def _obs(self) -> dict[str, np.ndarray]:
        return {"state": self.x[:, None].astype(np.float32), "image.front": np.zeros((2, 8, 8, 3), np.uint8)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        rows = (options or {}).get("reset_mask", np.ones(2, bool))
        self.x[rows], self.age[rows] = 0.0, np.where(rows, [0, 1], 0)[rows]  # the second row is a step ahead
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        self.x = self.x + np.asarray(actions)[:, 0]
        self.age += 1
        final, done = self._obs(), self.age >= STEPS
        obs = final
        if done.any() and self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
            obs, _ = self.reset(options={"reset_mask": done})
        info = {"final_obs": final, "_final_obs": done, "executed": np.asarray(actions)}
        return obs, np.full(2, 7.0), np.zeros(2, bool), done, info

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x.copy(), "age": self.age.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.x, self.age = state["x"].copy(), state["age"].copy()


def made(code: str = "x - before_x", mode: AutoresetMode = AutoresetMode.SAME_STEP, **options: Any) -> Watched:
    return Watched(Line(mode), ProgramReward(code, **options), hide=("image.front",))


def test_gains_add_up_to_the_way_across_resets() -> None:
    env = made()
    env.reset(seed=0)
    half = np.full((2, 1), 0.5, np.float32)
    rewards = np.array([env.step(half)[1] for _ in range(9)])
    np.testing.assert_allclose(rewards, 0.5)  # the step that ends an episode too, and the one after it
    paid = made("action_dx + x", keep=1.0)
    paid.reset(seed=0)
    obs, reward, _, truncated, info = paid.step(half)
    np.testing.assert_allclose(reward, 8.0)
    np.testing.assert_allclose(info["env_reward"], 7.0)
    assert list(obs) == ["state"] == list(paid.io.obs) == list(info["final_obs"])
    assert not truncated.any()


def test_works_where_the_loop_resets_and_in_a_stepper() -> None:
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
        stepper = Stepper(made(mode=mode))
        stepper.reset(seed=0)
        rows = [stepper.step(np.full((2, 1), 0.25, np.float32)) for _ in range(6)]
        np.testing.assert_allclose([row.reward for row in rows], 0.25)
        assert [row.truncated.tolist() for row in rows][3] == [True, False]


def test_run_continues_exactly() -> None:
    env, again = made(), made()
    env.reset(seed=0)
    env.step(np.ones((2, 1), np.float32))
    state = env.state_dict()
    expected = [env.step(np.full((2, 1), i, np.float32))[1] for i in range(4)]
    again.reset(seed=1)
    again.load_state_dict(state)
    np.testing.assert_array_equal(expected, [again.step(np.full((2, 1), i, np.float32))[1] for i in range(4)])


def test_environments_that_do_not_fit_are_refused() -> None:
    reward = ProgramReward("x")
    reward.cameras = ("top",)
    with pytest.raises(ValueError, match=r"shows no 'image\.top'; it shows \['image\.front'\]"):
        Watched(Line(), reward)
    with pytest.raises(ValueError, match="resets in the same step"):
        Watched(Line(AutoresetMode.NEXT_STEP), ProgramReward("x"))
    with pytest.raises(ValueError, match="nothing is left"):
        Watched(Line(), ProgramReward("x"), hide=("image.front", "state"))
    with pytest.raises(ValueError, match="no observable 'y'"):
        Watched(Line(), ProgramReward("y"))
