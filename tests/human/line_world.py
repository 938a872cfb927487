"""A robot on a line: the state is where it stands, the action moves it, success within 0.05 of the goal."""

import numpy as np
from gymnasium.vector import AutoresetMode

from robot_rl.types import EnvParts, IOSpec


class LineEnv:
    """One copy, same-step autoreset, a scripted expert, a place for the safety layer, exact state."""

    num_envs = 1
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    @property
    def parts(self):
        return EnvParts(expert=self.expert, tool=self.tool, saves=True)

    def __init__(self, steps: int = 30, speed: float = 0.1, seed: int = 0):
        self.io = IOSpec({"state": ((2,), "float32")}, ("tip_dx",), (-speed,), (speed,), ("m",), 10.0)
        self.speed, self.limit = speed, steps
        self.rng = np.random.default_rng(seed)
        self.place = self.goal = self.moved = 0.0
        self.time = self.resets = 0
        self.nan_at = -1

    def _draw(self):
        self.place, self.goal = self.rng.uniform(-1, 1, 2)
        self.time, self.moved = 0, 0.0
        self.resets += 1

    def _obs(self):
        return {"state": np.array([[self.place, self.goal]], np.float32)}

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self._draw()
        return self._obs(), {}

    def step(self, action):
        self.moved = float(np.clip(action[0, 0], -1, 1)) * self.speed
        self.place = float(np.clip(self.place + self.moved, -1, 1))
        self.time += 1
        success = abs(self.place - self.goal) < 0.05
        final, truncated = self._obs(), self.time >= self.limit
        if truncated:
            self._draw()
        info = {"final_obs": final, "success": np.array([success]), "executed": np.asarray(action, np.float32)}
        info["intervened"] = np.array([False])
        return self._obs(), np.zeros(1, np.float32), np.array([False]), np.array([truncated]), info

    def expert(self, obs):
        state = np.asarray(obs["state"])
        return np.clip((state[:, 1:] - state[:, :1]) / self.speed, -1, 1).astype(np.float32)

    def tool(self):
        return {
            "position": np.array([[self.place]]),
            "velocity": np.array([[self.moved * 10.0]]),
            "low": np.array([-1.05]),
            "high": np.array([1.05]),
        }

    def state_dict(self):
        state = self.rng.bit_generator.state
        numbers = {key: int(value) for key, value in state["state"].items()}
        names = ("place", "goal", "moved", "time")
        return {"rng": {**state, "state": numbers}, **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state["rng"]
        for name in ("place", "goal", "moved", "time"):
            setattr(self, name, state[name])
