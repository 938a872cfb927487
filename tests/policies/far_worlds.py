"""A task with a constant far from 0 beside its state: env=./tests/policies/far_worlds.py:FarPendulum."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.spaces import Box


class FarPendulum(gymnasium.Env):
    """Pendulum of 200 steps with rewards divided by ten, and a fourth number that never varies.

    Args:
        far: that number.
    """

    def __init__(self, far: float = -300.0) -> None:
        self._env, self._far, self._steps = PendulumEnv(), far, 0
        inner: Any = self._env.observation_space
        self.observation_space = Box(np.append(inner.low, -1e4), np.append(inner.high, 1e4), dtype=np.float32)
        self.action_space = self._env.action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        obs, info = self._env.reset(seed=seed)
        return self._beside(obs), info

    def step(self, action):
        obs, reward, over, _, info = self._env.step(action)
        self._steps += 1
        return self._beside(obs), float(reward) / 10.0, over, self._steps >= 200, info

    def _beside(self, obs):
        return np.append(obs, self._far).astype(np.float32)
