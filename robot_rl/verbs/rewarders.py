"""Environments with a reward that is computed beside them: `rewarder=program` and its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from omegaconf import DictConfig

from robot_rl import build
from robot_rl.verbs.compose import plain


def watched_factory(
    cfg: DictConfig, options: dict[str, Any], without: Callable[[int, int, bool], Any]
) -> Callable[[int, int, bool], Any]:
    """(num_envs, seed, render) -> environment with the reward of `options`; `.plain` makes it without."""
    found: list[float] = []
    build.make("rewarder", options, seed=cfg.seed)  # what is wrong with the options is said before anything is built

    def make(num_envs: int, seed: int, render: bool) -> Any:
        from robot_rl.loops.watched import Watched

        reward = build.make("rewarder", options, seed=cfg.seed)
        node, extra = plain(cfg.env), {"render_mode": "rgb_array"} if render else {}
        shown = cfg.env.get("cameras")
        new = [camera for camera in reward.cameras if shown is not None and camera not in shown]
        if new:  # pictures for the reward alone
            node["cameras"] = [*(shown or ()), *new]
            size = getattr(reward, "image_size", None)
            if size is not None and not shown:
                node["camera_size"] = list(size)
        env = build.make("engine", node, num_envs=num_envs, seed=seed, device=str(cfg.device), **extra)
        if getattr(reward, "z_max", 1.0) is None:
            if not found:
                found.append(reward.calibrate(random_pictures(env, reward.cameras[0], reward.calibration, seed)))
                print(f"  z_max {found[0]:.4g}: the 95th percentile over {reward.calibration} random steps")
            reward.z_max = found[0]
        return Watched(env, reward, hide=tuple(f"image.{camera}" for camera in new))

    make.plain = without  # type: ignore[attr-defined]
    return make


def random_pictures(env: Any, camera: str, steps: int, seed: int) -> np.ndarray:
    """(steps * N, H, W, 3) pictures of random actions; whoever uses the environment then resets it."""
    rng, key = np.random.default_rng(seed), f"image.{camera}"
    env.reset(seed=seed)
    found = []
    for _ in range(steps):
        obs = env.step(rng.uniform(-1, 1, (env.num_envs, env.io.action_dim)).astype(np.float32))[0]
        found.append(np.array(obs[key]))
    return np.concatenate(found)
