"""What environments say of their goals agrees with what they pay, end and show."""

from __future__ import annotations

from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from robot_rl import build
from robot_rl.sim import gym_env
from robot_rl.sim.world import parts_of


class Walk(gymnasium.Env):
    """A walk towards a goal, whose functions take a batch or only one row; the state does not hold where it is."""

    action_space = spaces.Box(-1, 1, (2,))
    observation_space = spaces.Dict(
        {
            "achieved_goal": spaces.Box(-9, 9, (2,), np.float64),
            "desired_goal": spaces.Box(-9, 9, (2,), np.float64),
            "observation": spaces.Box(-9, 9, (1,), np.float64),
        }
    )

    def __init__(self, batches: bool = True, ends: bool = True) -> None:
        self.batches, self.ends = batches, ends

    def compute_reward(self, achieved: Any, goal: Any, info: Any) -> Any:
        close = (
            np.linalg.norm(achieved - goal, axis=-1) < 1.0 if self.batches else np.linalg.norm(achieved - goal) < 1.0
        )
        return np.where(close, 0.0, -1.0) if self.batches else (0.0 if bool(close) else -1.0)

    def compute_terminated(self, achieved: Any, goal: Any, info: Any) -> Any:
        return self.ends and bool(np.linalg.norm(achieved - goal) < 1.0)  # of a batch: of all its rows at once

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.goal = np.zeros(2), self.np_random.uniform(-3, 3, 2)
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = self.at + action
        over = bool(self.compute_terminated(self.at, self.goal, {}))
        return self._look(), float(self.compute_reward(self.at, self.goal, {})), over, False, {"is_success": over}

    def _look(self) -> dict[str, np.ndarray]:
        return {"achieved_goal": self.at.copy(), "desired_goal": self.goal.copy(), "observation": self.at[:1] * 2}


class Speechless(gymnasium.Env):
    """Goals without a word on what they earn."""

    observation_space, action_space = Walk.observation_space, Walk.action_space


class Picky(Walk):
    """What it earns is said of one row at a time, and by an assertion."""

    def compute_reward(self, achieved: Any, goal: Any, info: Any) -> Any:
        assert np.shape(achieved) == (2,)
        return super().compute_reward(achieved, goal, info)


class Informed(Walk):
    """What it earns is read out of the step's info."""

    def compute_reward(self, achieved: Any, goal: Any, info: Any) -> Any:
        return -float(info["far"])


for name, kind in (("Walk", Walk), ("Speechless", Speechless), ("Picky", Picky), ("Informed", Informed)):
    gymnasium.register(f"{name}-v0", cast(Any, kind), max_episode_steps=8)


def agrees(env: Any, steps: int, act: Any) -> tuple[int, int]:
    """Steps in which an environment's own reward, end and state are those that its goals foretell: (paid, ended)."""
    obs, _ = env.reset(seed=3)
    goals, paid, ended = env.parts.goals, 0, 0
    for _ in range(steps):
        obs, reward, terminated, truncated, info = env.step(act(obs))
        achieved, desired = info["achieved_goal"], info["desired_goal"]
        assert achieved.shape == (env.num_envs, goals.reached)
        assert desired.shape == (env.num_envs, goals.width)
        np.testing.assert_allclose(goals.reward(achieved, desired), reward, atol=1e-5)
        over = np.zeros(env.num_envs, bool) if goals.ends is None else goals.ends(achieved, desired)
        np.testing.assert_array_equal(over, terminated)
        state = info["final_obs"]["state"]
        np.testing.assert_allclose(goals.show(state, desired, desired), state, atol=1e-6)
        paid, ended = paid + int((reward > reward.min()).sum()), ended + int((terminated | truncated).sum())
    return paid, ended


@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_gym_goals_pay_and_end_as_the_task_does(batches: bool, ends: bool) -> None:
    env = gym_env.make(3, 0, id="Walk-v0", kwargs={"batches": batches, "ends": ends})
    goals = env.parts.goals
    assert goals is not None
    assert (goals.ends is not None) == ends
    paid, ended = agrees(env, 30, lambda obs: np.clip(obs["state"][:, 1:] / 3, -1, 1).astype(np.float32))
    assert paid + ended > 3
    rng = np.random.default_rng(0)
    achieved, goal = rng.uniform(-1, 1, (2, 40, 2))
    close = np.linalg.norm(achieved - goal, axis=1) < 1.0
    np.testing.assert_array_equal(goals.reward(achieved, goal), np.where(close, 0.0, -1.0))
    if goals.ends is not None:
        np.testing.assert_array_equal(goals.ends(achieved, goal), close)
    shown = goals.show(np.arange(6.0).reshape(2, 3), np.zeros((2, 2)), np.full((2, 2), 9.0))
    np.testing.assert_array_equal(shown, [[0, 9, 9], [3, 9, 9]])


def test_gym_step_tells_the_goal_of_the_episode_that_ended() -> None:
    env = gym_env.make(1, 0, id="Walk-v0", kwargs={"ends": False})
    obs, _ = env.reset(seed=0)
    asked, cut = obs["state"][0, 1:], np.zeros(1, bool)
    for t in range(8):
        obs, _, _, cut, info = env.step(np.full((1, 2), 0.5, np.float32))
        np.testing.assert_allclose(info["achieved_goal"][0], (t + 1) * 0.5)
        np.testing.assert_array_equal(info["desired_goal"][0], asked)
    assert cut.all()  # and the next episode has begun
    assert not np.array_equal(obs["state"][0, 1:], asked)


def test_goals_are_absent_where_a_task_does_not_say_what_they_earn() -> None:
    assert gym_env.make(1, 0, id="Speechless-v0").parts.goals is None
    assert gym_env.make(1, 0, id="Informed-v0").parts.goals is None


def test_a_task_that_takes_one_row_at_a_time_is_asked_so() -> None:
    goals = gym_env.make(1, 0, id="Picky-v0").parts.goals
    assert goals is not None
    np.testing.assert_array_equal(goals.reward(np.zeros((2, 2)), np.array([[0.5, 0.5], [2.0, 0.0]])), [0.0, -1.0])


def test_fetch_pays_what_its_goals_foretell() -> None:
    pytest.importorskip("gymnasium_robotics", reason="pip install gymnasium-robotics")
    env = gym_env.make(2, 0, id="FetchReach-v4")
    goals = env.parts.goals
    assert goals is not None
    assert goals.ends is None
    agrees(env, 5, lambda obs: np.concatenate([obs["state"][:, 10:13] - obs["state"][:, :3], np.zeros((2, 1))], 1) * 10)


@pytest.mark.parametrize(
    "world",
    [
        {"name": "reach", "reward": "sparse"},
        {"name": "reach", "reward": "dense", "terminate_on_success": True},
        {"name": "pick", "reward": "sparse"},
        {"name": "pick", "reward": "sparse", "terminate_on_success": True},
    ],
    ids=lambda world: "-".join(str(value) for value in world.values()),
)
def test_our_worlds_pay_what_their_goals_foretell(world: dict[str, Any]) -> None:
    env = build.make("engine", {"engine": "mujoco", "world": world}, num_envs=4, seed=0, device="cpu")
    paid, ended = agrees(env, 55, env.expert)  # the expert reaches, picks and holds
    assert paid > 5
    assert ended >= 4
    env.close()


@pytest.mark.parametrize("name", ["reach", "pick"])
def test_our_worlds_show_another_goal_as_if_it_had_been_asked(name: str) -> None:
    node = {"engine": "mujoco", "world": {"name": name, "reward": "sparse"}}
    env = build.make("engine", node, num_envs=3, seed=0, device="cpu")
    env.reset(seed=1)
    begun, action = env.state_dict(), np.full((3, env.io.action_dim), 0.3, np.float32)
    obs, *_, info = env.step(action)
    other = info["desired_goal"] + np.array([0.01, -0.02, 0.03])
    env.load_state_dict({**begun, "task.goal": other})
    again, *_, told = env.step(action)
    np.testing.assert_allclose(
        env.parts.goals.show(obs["state"], info["desired_goal"], other), again["state"], atol=1e-5
    )
    np.testing.assert_array_equal(told["desired_goal"], other)
    np.testing.assert_allclose(told["achieved_goal"], info["achieved_goal"], atol=1e-6)
    env.close()


def test_goals_of_our_worlds_are_absent_where_the_policy_would_not_see_them() -> None:
    for world, extra in (
        ({"name": "pick"}, {}),  # its dense reward depends on more than the goal
        ({"name": "reach"}, {"proprio": "own"}),
        ({"name": "pendulum"}, {}),
    ):
        engine = "array" if world["name"] == "pendulum" else "mujoco"
        env = build.make("engine", {"engine": engine, "world": world, **extra}, num_envs=1, seed=0, device="cpu")
        assert env.parts.goals is None
        env.close()


def test_pick_goal_on_the_table_is_met_by_a_cube_that_lies_there_and_one_in_the_air_is_not() -> None:
    node = {"engine": "mujoco", "world": {"name": "pick", "reward": "sparse"}}
    goals = build.make("engine", node, num_envs=1, seed=0, device="cpu").parts.goals
    # (cube, held) under a goal: on the table; in the air and held; in the air, thrown; 4 cm away
    achieved = np.array([[0.4, 0, 0.02, 0], [0.4, 0, 0.2, 1], [0.4, 0, 0.2, 0], [0.4, 0, 0.2, 1]])
    goal = np.array([[0.4, 0.02, 0.02], [0.4, 0, 0.2], [0.4, 0, 0.2], [0.4, 0.04, 0.2]])
    np.testing.assert_array_equal(goals.reward(achieved, goal), [1, 1, 0, 0])


def test_an_attribute_of_the_same_name_is_no_goal() -> None:
    class Own:
        goals = ("red", "blue")

    with pytest.raises(ValueError, match=r"Own.goals is a tuple, expected sim.world.WorldGoals.*another name"):
        parts_of(Own())
