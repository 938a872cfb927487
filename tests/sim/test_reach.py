"""Reach: what counts as there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.reach import Reach

ONE_THREAD = EngineOptions(num_threads=1)


def test_reach_success_is_two_centimetres_and_reward_falls_with_distance() -> None:
    world = Reach()
    env = make(3, 0, world=world, options=ONE_THREAD)
    env.reset(seed=0)
    view: Any = env._view
    view.task["goal"][...] = view.task["tip"] + np.array([[0.0, 0.0, 0.0], [0.0, 0.019, 0.0], [0.0, 0.0, 0.021]])
    assert world.success(view).tolist() == [True, True, False]
    reward = world.reward(view)
    assert reward[0] == pytest.approx(1.0)
    # 1 - 0.5 tanh(0.019 / 0.2) - 0.5 tanh(0.019 / 0.03)
    assert reward[1] == pytest.approx(1 - 0.5 * math.tanh(0.095) - 0.5 * math.tanh(0.6333333), abs=1e-6)
    env.close()


def test_reach_start_lies_inside_the_work_space() -> None:
    env = make(200, 0, world=Reach(), options=ONE_THREAD)
    env.reset(seed=0)
    for key in ("tip", "goal"):
        value = env._view.task[key]
        assert (value > np.array([0.319, -0.181, 0.059])).all()
        assert (value < np.array([0.541, 0.181, 0.301])).all()
    env.close()


def test_reach_same_seed_same_start_and_steps() -> None:
    runs = []
    for _ in range(2):
        env = make(4, 7, world=Reach(), options=ONE_THREAD)
        obs, _ = env.reset()
        states = [obs["state"].copy()]
        for _ in range(10):
            obs, *_ = env.step(env.expert(obs))
            states.append(obs["state"].copy())
        env.close()
        runs.append(np.stack(states))
    np.testing.assert_array_equal(runs[0], runs[1])
