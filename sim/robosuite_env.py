"""robosuite's manipulation tasks as a Gymnasium environment: seeded starts, success in the info, pictures on demand.

robosuite's own GymWrapper seeds NumPy's global generator, which its placements no longer read, and tells no success.
Actions are those of the robot's default controller (arms: moves of the gripper by operational space control, then the
gripper).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from robot_rl.extras import require_foreign

ID = "robot_rl/Robosuite-v0"
WANTED = "robosuite's tasks come with it: pip install robosuite"


class RobosuiteTask(gymnasium.Env):
    """One task, one robot; the reward is robosuite's shaped one, at most 1 a step.

    Args:
        task: of robosuite, e.g. "Lift".
        robot: of robosuite, e.g. "Panda".
        control_freq: decisions per second.
        render_mode: "rgb_array" for pictures.
        options: further arguments of `robosuite.make`.

    Raises:
        ImportError: robosuite is not installed.
        ValueError: it has no such task.
    """

    metadata: dict[str, object] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(
        self,
        task: str,
        robot: str = "Panda",
        control_freq: int = 20,
        render_mode: str | None = None,
        **options: object,
    ) -> None:
        suite = require_foreign("robosuite", WANTED)
        if task not in suite.ALL_ENVIRONMENTS:
            raise ValueError(f"robosuite has no task '{task}'; it has {', '.join(sorted(suite.ALL_ENVIRONMENTS))}")
        self.render_mode, self.dt = render_mode, 1.0 / control_freq
        self._base = suite.make(
            task, robots=robot, has_renderer=False, has_offscreen_renderer=render_mode is not None,
            use_camera_obs=False, reward_shaping=True, ignore_done=True, control_freq=control_freq, seed=0, **options,
        )  # fmt: skip
        seen = self._base.reset()
        self._keys = [key for key in seen if key == "object-state" or key.endswith("proprio-state")]
        self.observation_space = spaces.Box(-np.inf, np.inf, self._see(seen).shape, np.float32)
        low, high = self._base.action_spec
        self.action_space = spaces.Box(np.asarray(low, np.float32), np.asarray(high, np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Any, dict[str, Any]]:
        """Objects where the seed puts them."""
        super().reset(seed=seed)
        if seed is not None:  # in place: the placements hold this generator
            self._base.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        return self._see(self._base.reset()), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One decision."""
        seen, reward, _, _ = self._base.step(action)
        return self._see(seen), float(reward), False, False, {"success": bool(self._base._check_success())}

    def render(self) -> np.ndarray:
        """(480, 640, 3) uint8 of the camera in front."""
        return self._base.sim.render(camera_name="frontview", width=640, height=480)[::-1]

    def close(self) -> None:
        """Free the simulation."""
        self._base.close()

    def _see(self, seen: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([np.ravel(seen[key]) for key in self._keys]).astype(np.float32)


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=RobosuiteTask, max_episode_steps=500)
