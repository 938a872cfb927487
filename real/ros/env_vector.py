"""`Ros2Env` behind the contract of our engines: one robot, shared by training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import find_file
from robot_rl.real.ros.env import Ros2Env
from robot_rl.types import EnvParts, Obs
from robot_rl.types.options import Count, NotNegative, Number, Positive, Whole


def make(
    num_envs: int,
    seed: int,
    device: str = "cpu",
    *,
    robot_spec: str,
    rate: Positive | None = None,
    port: Any = None,
    episode_seconds: Positive = 10.0,
    reset_mode: str = "home",
    reset_service: str = "",
    reset_timeout: Positive = 20.0,
    start: Sequence[Number] | None = None,
    start_noise: NotNegative = 0.0,
    arm: bool = False,
    terminate_on_success: bool = False,
    takeover_ends_episode: bool = False,
    command_rate: Positive = 100.0,
    max_hold: Positive = 0.5,
    image_size: Sequence[Count] = (128, 128),
    freeze_time: Positive = 1.0,
    namespace: str = "",
    use_sim_time: bool = False,
    realtime: Whole = 0,
    realtime_caller: bool = False,
    render_mode: str | None = None,
) -> Ros2VectorEnv:
    """The robot of a live graph as a vector environment of one.

    A robot exists once: further calls for the same robot give further views of it, so that a run may evaluate on the
    robot that it trains on. The view whose turn was taken finds its episode cut, with `valid` False.

    Args:
        num_envs: 1.
        seed: of sampled starts.
        device: where the learner runs; observations are NumPy arrays whatever it is.
        robot_spec: path of the RobotSpec, or the bare name of one that comes with the package.
        rate: see `Ros2Env`, as all that follow.
        port: see `Ros2Env`.
        episode_seconds: see `Ros2Env`.
        reset_mode: see `Ros2Env`.
        reset_service: see `Ros2Env`.
        reset_timeout: see `Ros2Env`.
        start: see `Ros2Env`.
        start_noise: see `Ros2Env`.
        arm: see `Ros2Env`.
        terminate_on_success: see `Ros2Env`.
        takeover_ends_episode: see `Ros2Env`.
        command_rate: see `Ros2Env`.
        max_hold: see `Ros2Env`.
        image_size: see `Ros2Env`.
        freeze_time: see `Ros2Env`.
        namespace: see `Ros2Env`.
        use_sim_time: see `Ros2Env`.
        realtime: see `Ros2Env`.
        realtime_caller: see `Ros2Env`.
        render_mode: "rgb_array" shows the first camera.

    Raises:
        ValueError: num_envs is not 1.
        RobotUnavailable: names what is missing.
    """
    if num_envs != 1:
        raise ValueError(f"num_envs is {num_envs}, expected 1: there is one robot; use eval_envs=1 and num_envs=1")
    if render_mode is not None and not RobotSpec.load(find_file(robot_spec)).cameras:
        raise RuntimeError("the robot has no cameras in its RobotSpec, so there is nothing to film")
    options = {
        "rate": rate,
        "port": port,
        "episode_seconds": episode_seconds,
        "reset_mode": reset_mode,
        "reset_service": reset_service,
        "reset_timeout": reset_timeout,
        "start": start,
        "start_noise": start_noise,
        "arm": arm,
        "terminate_on_success": terminate_on_success,
        "takeover_ends_episode": takeover_ends_episode,
        "command_rate": command_rate,
        "max_hold": max_hold,
        "image_size": tuple(image_size),
        "freeze_time": freeze_time,
        "namespace": namespace,
        "use_sim_time": use_sim_time,
        "realtime": realtime,
        "realtime_caller": realtime_caller,
    }
    key = (namespace, robot_spec)
    shared = _robots.get(key)
    if shared is None:
        shared = _robots[key] = _Robot(Ros2Env(find_file(robot_spec), **options), key)
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
        options.pop("reset_mask", None)
        if isinstance(seed, Sequence):
            seed = seed[0]
        if seed is None and not self._seeded:
            seed = self._seed
        self._seeded = True
        self._robot.driver = self
        obs, info = self._robot.env.reset(seed=None if seed is None else int(seed), options=options)
        return _batch(obs), self._batched(info)

    def step(self, actions: Any) -> tuple[Obs, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """See `Ros2Env.step`; `info` has `success`, `executed`, `intervened` and `valid` as arrays (1, ...)."""
        if self._robot.driver is not self:  # somebody else has moved the robot since our last step
            self._robot.driver = None
            obs, info = self._robot.env.reset()
            info |= {"valid": False, "fault": "the robot was used by another view"}
            ended = np.array([True])
            return _batch(obs), np.zeros(1, np.float32), ~ended, ended, self._batched(info)
        obs, reward, terminated, truncated, info = self._robot.env.step(np.asarray(actions)[0])
        flags = (np.array([terminated]), np.array([truncated]))
        return _batch(obs), np.array([reward], np.float32), *flags, self._batched(info)

    @property
    def parts(self) -> EnvParts:
        """Nothing: a robot has no expert, and cannot be put anywhere."""
        return EnvParts()

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

    def close_extras(self, **kwargs: Any) -> None:
        """Close the robot with its last view."""
        self._robot.views -= 1
        if self._robot.views <= 0:
            _robots.pop(self._robot.key, None)
            self._robot.env.close()

    def _batched(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """What loops read, as arrays (1, ...); all that the robot said stays under `robot`."""
        return {
            "success": np.array([bool(info["success"])]),
            "executed": np.asarray(info["action_executed"], np.float32)[None],
            "intervened": np.array([bool(info["intervened"])]),
            "valid": np.array([bool(info["valid"])]),
            "robot": dict(info),
        }


def _batch(obs: Obs) -> Obs:
    return {key: np.asarray(value)[None] for key, value in obs.items()}
