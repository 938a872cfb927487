"""Spaces of Gymnasium tasks that are neither one box nor one choice."""

from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from robot_rl import build
from robot_rl.sim.gym_env import make
from robot_rl.verbs.compose import compose_verb
from robot_rl.verbs.reading import plain


class Echo(gym.Env):
    """Observes what its space is told to hold; keeps the last action."""

    def __init__(self, observation: spaces.Space, action: spaces.Space, shown: Any) -> None:
        self.observation_space, self.action_space, self.shown = observation, action, shown

    def reset(self, *, seed=None, options=None):
        return self.shown, {}

    def step(self, action):
        assert self.action_space.contains(action), (action, self.action_space)
        self.action = action
        return self.shown, 0.0, False, False, {}


cast(Any, gym.register)("Echo-v0", Echo, disable_env_checker=True)
ONE = spaces.Box(-1, 1, (1,), np.float32)


def echo(observation: spaces.Space = ONE, action: spaces.Space = ONE, shown: Any = (0.5,)) -> Any:
    env: Any = make(1, 0, id="Echo-v0", kwargs={"observation": observation, "action": action, "shown": shown})
    env.reset()
    return env


def did(env: Any, *action: float) -> Any:
    executed = env.step(np.array([action], np.float32))[4]["executed"]
    return env._copies.envs[0].unwrapped.action, executed[0].tolist()


def test_a_tuple_is_laid_out_in_its_order():
    env = echo(
        spaces.Tuple((spaces.Box(-9, 9, (2,)), spaces.Discrete(3), spaces.Dict({"z": ONE}))),
        shown=((1, 2), 1, {"z": [3]}),
    )
    assert env.io.obs_names == ("0[0]", "0[1]", "1=0", "1=1", "1=2", "2.z[0]")
    assert env.observe()["state"].tolist() == [[1, 2, 0, 1, 0, 3]]


def test_several_choices_observed_are_a_one_hot_row_each():
    env = echo(spaces.MultiDiscrete([2, 3], start=[0, 5]), shown=np.array([1, 7]))
    assert env.io.obs_names == ("observation[0]=0", "observation[0]=1", *(f"observation[1]={k}" for k in (5, 6, 7)))
    assert env.observe()["state"].tolist() == [[0, 1, 0, 0, 1]]
    with pytest.raises(RuntimeError, match="the choice 4 is none of the 3 from 5 on"):
        echo(spaces.MultiDiscrete([2, 3], start=[0, 5]), shown=np.array([1, 4]))


def test_what_a_goal_task_shows_beside_its_goal_is_seen():
    keys = ("achieved_goal", "desired_goal", "force", "observation")
    env = echo(spaces.Dict(dict.fromkeys(keys, ONE)), shown={key: [k / 4] for k, key in enumerate(keys)})
    assert env.io.obs_names == ("observation[0]", "desired_goal[0]", "force[0]")
    assert env.observe()["state"].tolist() == [[0.75, 0.25, 0.5]]


def test_stacked_frames_are_pictures():
    shown = np.arange(2, dtype=np.uint8)[:, None, None, None] * np.ones((2, 8, 8, 3), np.uint8)
    env = echo(spaces.Box(0, 255, (2, 8, 8, 3), np.uint8), shown=shown)
    assert {key: int(value.max()) for key, value in env.observe().items()} == {"image.0": 0, "image.1": 1}


def test_pictures_of_floats_are_not_taken_for_thousands_of_numbers():
    with pytest.raises(ValueError, match=r"'observation' looks like a picture of float32, \(64, 64, 3\): .* uint8"):
        echo(spaces.Box(0, 1, (64, 64, 3)), shown=np.zeros((64, 64, 3), np.float32))
    grid = echo(spaces.Box(0, 1, (7, 7, 3)), shown=np.zeros((7, 7, 3), np.float32))
    assert grid.io.obs["state"][0] == (147,)


def test_several_choices_do_what_was_chosen():
    env = echo(action=spaces.MultiDiscrete([2, 3], start=[0, 5]))
    assert env.io.action_choices == (2, 3)
    action, executed = did(env, 0.7, -0.2)
    assert action.tolist() == [1, 6]
    assert executed == [1.0, 0.0]  # each of its own number of choices
    switches = echo(action=spaces.MultiBinary((2, 2)))
    assert switches.io.action_choices == (2, 2, 2, 2)
    assert did(switches, 1, -1, -0.3, 0.3)[0].tolist() == [[1, 0], [0, 1]]


def test_a_matrix_of_actions_is_flattened():
    env = echo(action=spaces.Box(np.array([[-1.0], [0.0]], np.float32), np.array([[1.0], [4.0]], np.float32)))
    assert did(env, 0.5, 0.5)[0].tolist() == [[0.5], [3.0]]


TASK = """
import gymnasium
from gymnasium import spaces

class Mine(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, pay=1.0, render_mode=None):
        self.pay, self.steps = pay, 0

    def reset(self, *, seed=None, options=None):
        return [0.0], {}

    def step(self, action):
        return [0.0], self.pay, False, False, {}
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_a_task_may_be_a_class_of_the_users_own_file(tmp_path, workers):
    file = tmp_path / "mine.py"
    file.write_text(TASK)
    with pytest.raises(ValueError, match="trust=true"):  # a name that a run folder brings is not run
        make(1, 0, id=f"{file}:Mine")
    cfg = compose_verb("check", {"env": f"{file}:Mine"}, {"env": {"kwargs": {"pay": 2.5}, "episode_steps": 3}})
    assert cfg.env.id == f"{file}:Mine"
    env = build.make("engine", {**plain(cfg.env), "workers": workers}, num_envs=1, seed=0, device="cpu")
    env.reset()
    steps = [env.step(np.zeros((1, 1))) for _ in range(3)]
    assert [(float(step[1][0]), bool(step[3][0])) for step in steps] == [(2.5, False), (2.5, False), (2.5, True)]
    env.close()
    with pytest.raises(ValueError, match="unexpected keyword argument 'size'"):
        make(1, 0, id=f"{file}:Mine", kwargs={"size": 3})


def test_a_module_that_is_not_found_says_how_to_name_it():
    with pytest.raises(ValueError, match=r"no module 'no_such_module' .* PYTHONPATH=\."):
        make(1, 0, id="no_such_module:Task-v0")


def wrapped() -> gym.Env:
    return gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(gym.make("Pendulum-v1")))


cast(Any, gym.register)("Wrapped-v0", wrapped, disable_env_checker=True)


def test_a_wrapper_whose_moments_belong_to_one_copy_is_named():
    assert make(1, 0, id="Pendulum-v1").parts.notes == ()
    reward, observation = make(1, 0, id="Wrapped-v0").parts.notes
    assert "NormalizeReward" in reward
    assert "policy.normalize_obs=true" in observation


class Bare(gym.Env):
    """Sets no spaces."""


cast(Any, gym.register)("Bare-v0", Bare, disable_env_checker=True)


def test_spaces_that_are_absent_or_hold_nothing_are_told():
    with pytest.raises(ValueError, match="Bare-v0 has no action_space and no observation_space; set what it shows"):
        make(1, 0, id="Bare-v0")
    with pytest.raises(ValueError, match="which holds no number; there is nothing to learn"):
        echo(action=spaces.Box(-1, 1, (0,), np.float32))
    with pytest.raises(ValueError, match="holds no number; a policy needs something to see"):
        echo(observation=spaces.Box(-1, 1, (0,), np.float32))
