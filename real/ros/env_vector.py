"""`Ros2Env` behind the contract of our engines: one robot, shared by training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import find_file
from robot_rl.real.ros.env import Ros2Env, Ros2Options
from robot_rl.types import EnvParts, Obs


def make(
    options: Ros2Options, num_envs: int, seed: int, device: str = "cpu", *, render_mode: str | None = None
) -> Ros2VectorEnv:
    """The robot of a live graph as a vector environment of one.

    A robot exists once: further calls for the same robot give further views of it, so that a run may evaluate on the
    robot that it trains on. The view whose turn was taken finds its episode cut, with `valid` False.

    Args:
        options: of the robot's environment.
        num_envs: 1.
        seed: of sampled starts.
        device: where the learner runs; observations are NumPy arrays whatever it is.
        render_mode: "rgb_array" shows the first camera.

    Raises:
        ValueError: num_envs is not 1.
        RobotUnavailable: names what is missing.
    """
    if num_envs != 1:
        raise ValueError(f"num_envs is {num_envs}, expected 1: there is one robot; use eval_envs=1 and num_envs=1")
    if render_mode is not None and not RobotSpec.load(find_file(options.robot_spec)).cameras:
        raise RuntimeError("the robot has no cameras in its RobotSpec, so there is nothing to film")
    key = (options.namespace, options.robot_spec)
    shared = _robots.get(key)
    if shared is None:
        shared = _robots[key] = _Robot(Ros2Env(options), key)
    return Ros2VectorEnv(shared, seed)


class _Robot:
    """One robot and the views that use it."""

    def __init__(self, env: Ros2Env, key: tuple[str, str]) -> None:
        self.env, self.key = env, key
        self.views = 0
        self.driver: Any = None


_robots: dict[tuple[str, str], _Robot] = {}


class Ros2VectorEnv(VectorEnv):
    """A view of a robot; see `make`."""

    def __init__(self, robot: _Robot, seed: int) -> None:
        self._robot, self._seed = robot, seed
        robot.views += 1
        env = robot.env
        self.io, self.num_envs = env.io, 1
        self.render_mode = env.render_mode
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(env.observation_space, 1)
        self.action_space = batch_space(env.action_space, 1)
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self._seeded = False

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """See `Ros2Env.reset`; a `reset_mask` of False resets nothing."""
        options = dict(options or {})
        if not np.any(options.pop("reset_mask", True)):
            return self.look(), {}
        if isinstance(seed, Sequence):
            seed = seed[0]
        if seed is None and not self._seeded:
            seed = self._seed
        self._seeded = True
        self._robot.driver = self
        obs, info = self._robot.env.reset(seed=None if seed is None else int(seed), options=options)
        return _batch(obs), self._as_rows(info)

    def step(self, actions: Any) -> tuple[Obs, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """See `Ros2Env.step`; `info` has `success`, `executed`, `intervened` and `valid` as arrays (1, ...)."""
        if self._robot.driver is not self:  # somebody else has moved the robot since our last step
            self._robot.driver, found = None, self._robot.env.cut("the robot was used by another view")
        else:
            found = self._robot.env.step(np.asarray(actions)[0])
        obs, reward, terminated, truncated, info = found
        flags = (np.array([terminated]), np.array([truncated]))
        return _batch(obs), np.array([reward], np.float32), *flags, self._as_rows(info)

    @property
    def parts(self) -> EnvParts:
        """Nothing: a robot has no expert, and cannot be put anywhere."""
        return EnvParts()

    def look(self) -> Obs:
        """See `Ros2Env.look`; (1, ...)."""
        return _batch(self._robot.env.look())

    def pictures(self) -> dict[str, tuple[np.ndarray | bytes, float]]:
        """See `Ros2Env.pictures`; from any thread."""
        return self._robot.env.pictures()

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Picture of the first camera."""
        picture = self._robot.env.render()
        return None if picture is None else (picture,)

    def stop(self) -> None:
        """See `Ros2Env.stop`."""
        self._robot.env.stop()

    def unlock(self) -> None:
        """See `Ros2Env.unlock`."""
        self._robot.env.unlock()

    def close_extras(self, **kwargs: object) -> None:
        """Close the robot with its last view."""
        self._robot.views -= 1
        if self._robot.views <= 0:
            _robots.pop(self._robot.key, None)
            self._robot.env.close()

    def _as_rows(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """What loops read, as arrays (1, ...); all that the robot said stays under `robot`."""
        return {
            "success": np.array([bool(info["success"])]),
            "executed": np.asarray(info["action_executed"], np.float32)[None],
            "intervened": np.array([bool(info["intervened"])]),
            "valid": np.array([bool(info["valid"])]),
            "cam_age_ms": {name: np.array([age]) for name, age in info["cam_age_ms"].items()},
            "robot": dict(info),
        }


def _batch(obs: Obs) -> Obs:
    return {key: np.asarray(value)[None] for key, value in obs.items()}
