"""gym_hil's cube task with what a small learner needs: a block-to-gripper vector, seeded starts and a scripted oracle.

gym_hil (pip install gym-hil; it needs MuJoCo below 3.9, so an environment of its own) leaves three things to its user.
Its state holds where gripper and block are but not the vector between them; its random block comes from NumPy's global
generator, so that no seed repeats an episode; and there is nobody to demonstrate. This file adds them and changes
nothing of the task: 2.5 cm per action, 100 steps of 0.1 s, success when the block is 10 cm up.

Actions in [-1, 1]: three moves of the gripper, and its opening (1 opens, -1 closes; what lies between moves the
fingers' command by that share of its range).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from robot_rl.extras import require, require_foreign
from robot_rl.sim.gym_env import GymVectorEnv
from robot_rl.sim.headless import prefer_headless
from robot_rl.types import EnvParts, Obs, Options
from robot_rl.types.options import Count, Whole

WANTED = "Install it with: pip install gym-hil (it wants MuJoCo below 3.9: an environment of its own)"
ID = "robot_rl/GymHilPickCube-v0"
STEP = 0.025
"""Metres per action of 1, as in gym_hil's own wrappers."""
_LOW, _HIGH = (0.3, -0.15), (0.5, 0.15)  # where gym_hil's random block lies, m
_FINGERS = 255.0  # command of closed fingers
STATE = (
    *(f"joint{i}_position" for i in range(1, 8)),
    *(f"joint{i}_velocity" for i in range(1, 8)),
    "finger_command",
    *(f"gripper_{axis}" for axis in "xyz"),
    *(f"block_{axis}" for axis in "xyz"),
    *(f"gripper_to_block_{axis}" for axis in "xyz"),
)
"""Names of the state's columns; with pictures instead of the block, the first 18."""


class PickCube(gymnasium.Env):
    """`gym_hil/PandaPickCubeBase-v0` behind four actions.

    Args:
        random_block: anywhere on the table instead of gym_hil's fixed place.
        relative: add the vector from gripper to block to the state.
        pictures: cameras "front" and "wrist" instead of the block's place.
        options: further arguments of gym_hil's class.

    Raises:
        ImportError: gym_hil is not installed.
    """

    metadata: dict[str, object] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        random_block: bool = True,
        relative: bool = True,
        pictures: bool = False,
        render_mode: str | None = None,
        **options: object,
    ) -> None:
        prefer_headless()  # gym_hil opens a renderer even where nobody looks
        base = require_foreign("gym_hil.envs", WANTED).PandaPickCubeGymEnv
        self._base = base(image_obs=pictures, **options)
        self._random, self._relative, self._pictures = random_block, relative, pictures
        self.render_mode = render_mode
        self.model, self.data, self.dt = self._base.model, self._base.data, float(self._base.control_dt)
        self.action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        size = 18 if pictures else 24 if relative else 21
        state = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.observation_space = state
        if pictures:
            seen = self._base.observation_space["pixels"]
            self.observation_space = spaces.Dict({"state": state, "pixels": seen})

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Arm at home, block on the table."""
        super().reset(seed=seed)
        seen, _ = self._base.reset(seed=seed)
        if self._random:
            place = self.np_random.uniform(_LOW, _HIGH)
            self.data.joint("block").qpos[:2] = place
            require("mujoco").mj_forward(self.model, self.data)
            seen = self._base._compute_observation()
        return self._see(seen), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One tenth of a second."""
        move = np.zeros(7)
        move[:3] = STEP * np.clip(action[:3], -1.0, 1.0)
        move[6] = -float(np.clip(action[3], -1.0, 1.0))
        seen, reward, terminated, truncated, info = self._base.step(move)
        return self._see(seen), float(reward), terminated, truncated, {"success": bool(info["succeed"])}

    @property
    def block(self) -> np.ndarray:
        """(3,) where the block is now [m]."""
        return np.array(self.data.sensor("block_pos").data, np.float32)

    def render(self) -> np.ndarray:
        """The front camera."""
        return self._base.render()[0]

    def close(self) -> None:
        """Free the renderer."""
        self._base.close()

    def _see(self, seen: Mapping[str, object]) -> Any:
        robot = np.array(seen["agent_pos"], np.float32)
        robot[14] /= _FINGERS
        if self._pictures:
            return {"state": robot, "pixels": seen["pixels"]}
        block = np.asarray(seen["environment_state"], np.float32)
        return np.concatenate([robot, block, *([block - robot[15:18]] if self._relative else [])])


class GymHilEnv(GymVectorEnv):
    """`GymVectorEnv` with a scripted oracle."""

    @property
    def parts(self) -> EnvParts:
        """The oracle beside what every Gymnasium task has."""
        return replace(super().parts, expert=self.expert)

    def expert(self, obs: Obs) -> np.ndarray:
        """(N, 4) actions for observations with "state" (N, 21 or 24).

        With pictures in place of the block's place, the oracle looks into the simulator: a person who stands beside the
        robot sees the block too.

        Raises:
            ValueError: the block's place is neither in the observation nor at hand (`workers` above 0).
        """
        state = np.asarray(obs["state"])
        if state.shape[1] < 21 and self._copies is not None:
            state = np.concatenate(
                [state, [cast(PickCube, copy.unwrapped).block for copy in self._copies.envs]], axis=1
            )
        return oracle(state)


def oracle(state: np.ndarray) -> np.ndarray:
    """Over the block, down around it, close within four steps, lift.

    The fingers' command stands in the state, their place does not: closing in four steps makes the command a clock that
    says when they are shut.

    Args:
        state: (N, 21 or 24), see `STATE`.

    Raises:
        ValueError: the block's place is not in it.
    """
    if state.shape[1] < 21:
        raise ValueError(
            "the oracle looks at the block's place, which pictures do not tell; use pictures=false or workers=0"
        )
    closed, block = state[:, 14], state[:, 18:21] - state[:, 15:18]
    aside = np.linalg.norm(block[:, :2], axis=1)
    near = (aside < 0.012) & (np.abs(block[:, 2]) < 0.012)
    grasping = near | ((closed > 0.1) & (aside < 0.03) & (np.abs(block[:, 2]) < 0.03))
    above = np.clip(4.0 * (aside - 0.008), 0.0, 0.08)
    move = 0.6 * np.column_stack([block[:, :2], block[:, 2] + above]) / STEP
    move[grasping] = 0.0
    move[grasping & (closed > 0.95), 2] = 1.0
    fingers = np.where(grasping, -0.25, 1.0)
    return np.clip(np.column_stack([move, fingers]), -1.0, 1.0).astype(np.float32)


class GymHilOptions(Options):
    """Of the cube task."""

    random_block: bool = True
    """See `PickCube`."""
    relative: bool = True
    """See `PickCube`."""
    pictures: bool = False
    """See `PickCube`."""
    workers: Whole = 0
    """Processes that share the copies."""
    episode_steps: Count = 100
    """Time limit."""
    crash_dir: str | None = None
    """Folder for the saved state of a diverged simulation."""


DEFAULTS = GymHilOptions()


def make(
    num_envs: int,
    seed: int,
    device: str = "cpu",
    *,
    options: GymHilOptions = DEFAULTS,
    render_mode: str | None = None,
) -> GymHilEnv:
    """Make N copies of the task.

    Args:
        num_envs: N.
        seed: environment i depends on the seed and i alone.
        device: where the learner runs; this engine hands over NumPy arrays whatever it is.
        options: of the task.
        render_mode: "rgb_array" for `render()`.
    """
    o = options
    env = GymHilEnv(
        num_envs,
        seed,
        id=f"{__name__}:{ID}",
        kwargs={"random_block": o.random_block, "relative": o.relative, "pictures": o.pictures},
        workers=o.workers,
        episode_steps=o.episode_steps,
        control_hz=None,
        render_mode=render_mode,
        crash_dir=o.crash_dir,
    )
    width = env.io.obs["state"][0][0]
    env.io = replace(
        env.io,
        action_names=("tip_dx", "tip_dy", "tip_dz", "gripper_opening"),
        obs_names=STATE[:width],
    )
    return env


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=PickCube)
