"""Our worlds as a citizen of Gymnasium: registry, checkers, copies, other people's wrappers and learners."""

import copy
import os
import pickle
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import PPO
from stable_baselines3.common import env_checker
from stable_baselines3.common.vec_env import DummyVecEnv

from robot_rl import envs

WORLDS = ["robot_rl/Reach-v0", "robot_rl/Pick-v0", "robot_rl/Pendulum-v0"]


@pytest.mark.filterwarnings("ignore:.*Box observation space.*")
@pytest.mark.parametrize("name", WORLDS)
def test_the_checkers_of_others_pass(name: str):
    env = gymnasium.make(name, render_mode="rgb_array")
    check_env(env.unwrapped)
    env_checker.check_env(env.unwrapped)
    env.close()


def test_pictures_are_a_dict():
    env = gymnasium.make("robot_rl/Reach-v0", cameras=["front"], camera_size=[24, 32])
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert obs["image.front"].shape == (24, 32, 3)
    env.close()


def play(env, actions):
    return [env.step(action)[:2] for action in actions]


@pytest.mark.parametrize("name", ["robot_rl/Reach-v0", "robot_rl/Pendulum-v0"])
@pytest.mark.parametrize("twin", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_bit_for_bit(name: str, twin):
    env = gymnasium.make(name)
    twin(env).reset(seed=1)  # before the first reset, too
    env.reset(seed=3)
    actions = np.random.default_rng(0).uniform(-1, 1, (12, *(env.action_space.shape or ()))).astype(np.float32)
    play(env, actions[:5])
    other = twin(env)
    for ours, theirs in zip(play(env, actions[5:]), play(other, actions[5:])):
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1] == theirs[1]


def test_many_copies_equal_one_each():
    """The last observation of an episode is the true one, alone and in a batch."""
    many = gymnasium.make_vec("robot_rl/Pendulum-v0", num_envs=2)
    one = gymnasium.make("robot_rl/Pendulum-v0")
    first, _ = many.reset(seed=5)
    obs, _ = one.reset(seed=5)
    np.testing.assert_array_equal(first[0], obs)
    action = np.full((2, 1), 0.3, np.float32)
    batch, info = first, {}
    for step in range(200):
        batch, reward, _, over, info = many.step(action)
        obs, paid, _, truncated, _ = one.step(action[0])
        assert reward[0] == pytest.approx(paid)
        assert bool(over[0]) == truncated == (step == 199)
    np.testing.assert_array_equal(info["final_obs"][0], obs)
    assert not np.array_equal(batch[0], obs)  # the next episode's first
    assert many.observation_space.contains(batch)


def test_unseeded_episodes_differ():
    first = [gymnasium.make("robot_rl/Reach-v0").reset()[0] for _ in range(2)]
    assert not np.array_equal(*first)


def test_wrappers_and_learners_of_others():
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("robot_rl/Pendulum-v0"))
    model = PPO("MlpPolicy", DummyVecEnv([lambda: env]), n_steps=200, n_epochs=1, device="cpu").learn(200)
    assert model.num_timesteps == 200
    many = gymnasium.wrappers.vector.RecordEpisodeStatistics(gymnasium.make_vec("robot_rl/Pendulum-v0", num_envs=3))
    many.reset(seed=0)
    info = {}
    for _ in range(200):
        info = many.step(many.action_space.sample())[4]
    assert info["episode"]["l"].tolist() == [200] * 3


def test_a_window_shows_the_world(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("pygame")
    monkeypatch.setitem(os.environ, "SDL_VIDEODRIVER", "dummy")
    env = gymnasium.make("robot_rl/Reach-v0", render_mode="human")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    env.close()


def test_an_id_needs_no_import():
    code = "import gymnasium; env = gymnasium.make('robot_rl.envs:robot_rl/Pick-v0'); print(env.reset(seed=0)[0].shape)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "(16,)"
    assert "robot_rl/Quadruped-v0" in envs.IDS


def test_an_episode_follows_from_the_one_that_ended():
    """Practice begins at the checkpoint that was reached, which the engine knows before `reset` is called."""
    env: Any = gymnasium.make("robot_rl/Race-v0", world={"practice": True})
    obs, _ = env.reset(seed=0)
    engine, over, steps = env.unwrapped._world.env, False, 0
    while not over:
        action = engine.expert({"state": obs[None]})[0] if steps < 60 else np.ones(2, np.float32)
        obs, _, ended, cut, _ = env.step(action)
        over, steps = ended or cut, steps + 1
    begun = engine.state_dict()["task.gate"]
    env.reset()
    np.testing.assert_array_equal(engine.state_dict()["task.gate"], begun)
    env.close()


@pytest.mark.parametrize("name", ["robot_rl/Reach-v0", "robot_rl/Pendulum-v0"])
def test_the_last_picture_is_of_the_episode_that_ended(name: str):
    env: Any = gymnasium.make(name, render_mode="rgb_array")
    env.reset(seed=0)
    over = False
    while not over:
        _, _, ended, cut, _ = env.step(np.full(env.action_space.shape, 0.2, np.float32))
        over = ended or cut
    last = env.render()
    np.testing.assert_array_equal(copy.deepcopy(env).render(), last)
    env.reset()
    assert not np.array_equal(last, env.render())  # which was shown in its place
    env.close()
