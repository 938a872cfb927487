"""Worlds of pictures with known answers, as Gymnasium tasks of a file: env=./tests/policies/picture_worlds.py:Catch."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

ROWS, COLUMNS, PIXELS = 8, 6, 4


class Catch(gymnasium.Env):
    """A ball falls through a picture of (32, 24, 3) bytes; left, stay or right move a paddle: +1 caught, -1 missed.

    The best policy has return 1; one that acts at random catches 1 of 6 balls (-0.67). Nothing but the picture
    tells where the ball is.

    Args:
        continuous: the paddle is moved by a number in [-1, 1], rounded, in place of a choice.
    """

    def __init__(self, continuous: bool = False) -> None:
        self.observation_space = spaces.Box(0, 255, (ROWS * PIXELS, COLUMNS * PIXELS, 3), np.uint8)
        self._continuous = continuous
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._row, self._ball, self._paddle = 0, int(self.np_random.integers(COLUMNS)), COLUMNS // 2
        return self._picture(), {}

    def step(self, action):
        move = round(float(action[0]) * 1.49) if self._continuous else int(action) - 1
        self._paddle = min(max(self._paddle + move, 0), COLUMNS - 1)
        self._row += 1
        over = self._row == ROWS - 1
        caught = over and self._ball == self._paddle
        reward = (1.0 if caught else -1.0) if over else 0.0
        return self._picture(), reward, over, False, {"is_success": caught}

    def _picture(self):
        picture = np.zeros((ROWS, COLUMNS, 3), np.uint8)
        picture[self._row, self._ball, 0] = 255
        picture[-1, self._paddle, 1] = 255
        return picture.repeat(PIXELS, 0).repeat(PIXELS, 1)
