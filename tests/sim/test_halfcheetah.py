from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest

from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.halfcheetah import HalfCheetah


@pytest.fixture(scope="module")
def recorded():
    """A gymnasium episode of random actions: states before each step, actions, observations and rewards after it."""
    env = gym.make("HalfCheetah-v5")
    env.reset(seed=3)
    data = cast(Any, env.unwrapped).data
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(1000):
        action = rng.uniform(-1, 1, 6).astype(np.float32)
        before = (data.qpos.copy(), data.qvel.copy())
        obs, reward, _, truncated, _ = env.step(action)
        rows.append((*before, action, obs, reward, truncated))
    return [np.array(column) for column in zip(*rows)]


def test_every_step_of_a_gymnasium_episode_is_reproduced(recorded):
    qpos, qvel, action, obs, reward, _ = recorded
    env = make(1000, 0, world=HalfCheetah())
    env.reset()
    env.physics.place(np.arange(1000), qpos, qvel, np.zeros((1000, 6)))
    env._view.task["x"] = qpos[:, 0].copy()
    ours, gain, *_ = env.step(action)
    # only the solver's warm start differs; float32 observations of speeds up to 20 resolve 2e-6
    assert ours["state"] == pytest.approx(obs, abs=1e-5)
    assert gain == pytest.approx(reward, abs=1e-5)
    assert gain.astype(float).sum() == pytest.approx(reward.sum(), abs=1e-3)


def test_whole_episode_equals_gymnasium_bit_for_bit(recorded):
    qpos, qvel, action, obs, reward, _ = recorded
    env = make(1, 0, world=HalfCheetah())
    env.reset()
    env.physics.place(np.arange(1), qpos[:1], qvel[:1], np.zeros((1, 6)))
    env._view.task["x"] = qpos[:1, 0].copy()
    for step in range(999):  # the last step ends the episode, and ours begins the next one
        assert np.array_equal(env.physics.qpos[0], qpos[step])
        assert np.array_equal(env.physics.qvel[0], qvel[step])
        ours, gain, *_ = env.step(action[step : step + 1])
        assert np.array_equal(ours["state"][0], obs[step].astype(np.float32))
        assert gain[0] == pytest.approx(reward[step], abs=1e-6)


def test_initial_states_are_distributed_as_in_gymnasium():
    env = make(4000, 0, world=HalfCheetah())
    obs = env.reset()[0]["state"]
    # uniform +-0.1 has standard deviation 0.1 / sqrt(3) = 0.0577; velocities are normal with 0.1
    assert obs[:, :8].std(axis=0) == pytest.approx(0.0577, rel=0.05)
    assert np.abs(obs[:, :8]).max() <= 0.1
    assert obs[:, 8:].std(axis=0) == pytest.approx(0.1, rel=0.05)


def test_time_limit_is_that_of_gymnasium(recorded):
    assert np.flatnonzero(recorded[5]).tolist() == [999]
    assert HalfCheetah.episode_steps == 1000


def test_expert_runs():
    env = make(8, 0, world=HalfCheetah())
    obs, _ = env.reset()
    speed = np.zeros(8)
    info: Any = None
    for _ in range(200):
        obs, reward, _, _, info = env.step(env.expert(obs))
        speed += reward / 200
    assert np.median(speed) > 3.0
    assert info["success"].mean() >= 0.5
